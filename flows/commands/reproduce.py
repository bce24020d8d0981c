"""`grpo reproduce`."""

from __future__ import annotations

import typer

from flows.cli.command import ModelAddress, console
from flows.cli.errors import FAILED
from flows.commands.begin import begin


def reproduce(model: ModelAddress) -> None:
    """Train a version again from what is written down of it, and compare the weights.

    Exit code 0 where they are the same bit for bit, as they are on the CPU; 1 where not, with what differs.

    Example: grpo reproduce models:/support-desk@champion
    """
    home = begin()
    from flows.local.servers import prefect_server

    with prefect_server(home):
        from flows.cli.display import live
        from flows.reproduce import reproduce as flow
        from flows.versions import print_reproduction

        with live(console):
            result = flow(model)
        print_reproduction(console, result)
    if not result.equal:
        raise typer.Exit(FAILED)
