"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

ConfigFile = Annotated[Path, typer.Argument(help="YAML file; the shipped ones are in data/configs.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value, over the file; may be repeated.")
]

console = Console()
