"""`grpo lineage`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.command import ModelAddress, console
from flows.commands.begin import begin


def lineage(
    model: ModelAddress,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, the whole config in it.")] = False,
) -> None:
    """Print what a version was made from, its ancestors, and every promotion and rollback.

    Example: grpo lineage models:/support-desk@champion
    """
    home = begin()
    home.mkdir(parents=True, exist_ok=True)  # where the registry, and Prefect when it is imported, make their own files
    from flows.versions import print_lineage
    from grpo.registry.lineage import trace_lineage
    from tasks.registry import registry

    models = registry()
    found = trace_lineage(models, models.resolve(model))
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_lineage(console, found)
