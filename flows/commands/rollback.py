"""`grpo rollback`."""

from __future__ import annotations

from flows.commands.arguments import ModelName, Reason, console
from flows.commands.begin import begin


def rollback(model: ModelName, reason: Reason) -> None:
    """Let the version serve again that the champion has replaced.

    Example: grpo rollback support-desk --reason "refunds twice"
    """
    home = begin()
    from flows.stack.servers import prefect_server

    with prefect_server(home):
        from flows.rollback import rollback as flow
        from flows.terminal import live
        from flows.versions import print_transition

        with live(console):
            transition = flow(model, reason=reason)
        print_transition(console, model, transition)
