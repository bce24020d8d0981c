"""`grpo doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows import settings
from flows.commands.arguments import console
from flows.commands.exits import FAILED


def doctor(
    store: Annotated[
        str | None, typer.Option(help="Artifact store to look at; by default `artifacts` in GRPO_HOME.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look whether this machine can do the work, and say what to do where it cannot; exit code 1 if a run would fail.

    Example: grpo doctor --json
    """
    home = settings.apply()
    from flows.doctor.examination import examine
    from flows.terminal import print_diagnosis

    found = examine(home, store or str(home / "artifacts"))
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_diagnosis(console, found)
    if not found.healthy:
        raise typer.Exit(FAILED)
