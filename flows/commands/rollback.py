"""`grpo rollback`."""

from __future__ import annotations

from flows import settings
from flows.commands.arguments import ModelName, Reason, console
from flows.commands.exits import exits
from grpo.errors import AddressError, ConfigError


def rollback(model: ModelName, reason: Reason) -> None:
    """Let the version serve again that the champion has replaced.

    Example: grpo rollback support-desk --reason "refunds twice"
    """
    home = settings.apply()
    from flows.stack.servers import prefect_server

    with exits(wrong_input=(ConfigError, AddressError)), prefect_server(home):
        from flows.rollback import rollback as flow
        from flows.terminal import live
        from flows.versions import print_transition

        with live(console):
            transition = flow(model, reason=reason)
        print_transition(console, model, transition)
