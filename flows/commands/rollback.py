"""`grpo rollback`."""

from __future__ import annotations

from flows.cli.command import ModelName, Reason, console
from flows.commands.begin import begin


def rollback(model: ModelName, reason: Reason) -> None:
    """Let the version serve again that the champion has replaced.

    Example: grpo rollback support-desk --reason "refunds twice"
    """
    home = begin()
    from flows.local.servers import prefect_server

    with prefect_server(home):
        from flows.cli.display import live
        from flows.rollback import rollback as flow
        from flows.versions import print_change

        with live(console):
            change = flow(model, reason=reason)
        print_change(console, model, change)
