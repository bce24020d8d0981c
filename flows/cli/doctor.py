"""`grpo doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Overrides, console
from flows.cli.errors import FAILED
from flows.local import settings
from grpo.config.pipeline import load_config


def doctor(
    config: Annotated[Path | None, typer.Argument(help="YAML file of a run; also what it needs is looked at.")] = None,
    override: Overrides = None,
    store: Annotated[
        str | None, typer.Option(help="Artifact store to look at; else the config's, or `artifacts` in GRPO_HOME.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look whether this machine can do the work, and say what to do where it cannot; exit code 1 if a run would fail.

    Example: grpo doctor --json

    Example: grpo doctor data/configs/quickstart.yaml
    """
    home = settings.apply()
    from flows.cli.display import print_diagnosis
    from flows.doctor.examination import examine

    plan = None if config is None else load_config(config, tuple(override or ()))
    looked_at = store or (plan.store if plan is not None else str(home / "artifacts"))
    found = examine(home, looked_at, plan)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_diagnosis(console, found)
    if not found.healthy:
        raise typer.Exit(FAILED)
