"""`grpo promote`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.command import ModelName, Reason, console
from flows.commands.begin import begin


def promote(
    model: ModelName,
    reason: Reason,
    version: Annotated[int | None, typer.Option(help="Number of the version; the candidate if left out.")] = None,
    force: Annotated[bool, typer.Option(help="Promote against the verdict; the record says so.")] = False,
) -> None:
    """Let a version serve: the alias champion moves to it, previous to the one it replaces.

    Exit code 3 for a version that did not pass its gates, was judged against another champion, or has served before.

    Example: grpo promote support-desk --reason "looked at 40 conversations"
    """
    home = begin()
    from flows.local.servers import prefect_server

    with prefect_server(home):
        from flows.cli.display import live
        from flows.promote import promote as flow
        from flows.versions import print_change

        with live(console):
            change = flow(model, version=version, reason=reason, force=force)
        print_change(console, model, change)
