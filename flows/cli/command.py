"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import PlainConsole
from grpo.registry.promotions import LONGEST_REASON

ConfigFile = Annotated[Path, typer.Argument(help="YAML file; the shipped ones are in data/configs.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value, over the file; may be repeated.")
]
ModelName = Annotated[str, typer.Argument(help="Name of the registered model, as in registry.model_name.")]
ModelAddress = Annotated[str, typer.Argument(help="models:/NAME@champion, @candidate, @previous, or models:/NAME/3.")]


def _reason(value: str) -> str:
    """The reason without blanks around it; refused before anything starts."""
    if not 1 <= len(reason := value.strip()) <= LONGEST_REASON:
        raise typer.BadParameter(f"it has {len(reason)} characters; write 1 to {LONGEST_REASON}")
    return reason


Reason = Annotated[str, typer.Option(help="Why; it is written into the record.", callback=_reason)]

console = PlainConsole()
