"""`grpo doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows import settings
from flows.commands.arguments import console
from flows.commands.exits import FAILED
from grpo.config.pipeline import PipelineConfig


def doctor(
    store: Annotated[str, typer.Option(help="Artifact store to look at: a folder or an fsspec address.")] = str(
        PipelineConfig.model_fields["store"].default
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look whether this machine can do the work, and say what to do where it cannot; exit code 1 if a run would fail.

    Example: grpo doctor --json
    """
    home = settings.apply()
    from flows.doctor.examination import examine
    from flows.terminal import print_diagnosis

    found = examine(home, store)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_diagnosis(console, found)
    if not found.healthy:
        raise typer.Exit(FAILED)
