"""Arguments that several commands share, and the start of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo.storage.shipped import shipped_folder
from grpo_cli.console import PlainConsole
from grpo_local import settings

QUICKSTART = shipped_folder() / "configs" / "quickstart.yaml"

ConfigFile = Annotated[
    str, typer.Argument(help="YAML file of the run, or grpo://configs/NAME.yaml for a config of this package.")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Setting that replaces the file's: section.key=value. Repeatable.")
]
ModelAddress = Annotated[str, typer.Argument(help="models:/NAME@champion, @candidate, @previous, or models:/NAME/3.")]


def _reason(value: str) -> str:
    """Strip the reason and check its length."""
    from grpo.policy.weights.promotion_records import LONGEST_REASON

    if not 1 <= len(reason := value.strip()) <= LONGEST_REASON:
        raise typer.BadParameter(f"it has {len(reason)} characters. Write 1 to {LONGEST_REASON}")
    return reason


Reason = Annotated[str, typer.Option(help="Why you do it. The promotion history keeps the reason.", callback=_reason)]

console = PlainConsole()


def start_command(*, services: bool = True) -> Path:
    """Apply the settings to the environment and check the home, ports, databases and named servers.

    With `services=False` only the home is checked. Returns the home. Raises `ConfigError`, `StorageError` or
    `ConnectionError` for the first fault that `grpo doctor` would show as a problem.
    """
    home = settings.apply()
    from grpo_local.checks import check_home, check_named_servers, check_ports, check_records, require

    require([check_home(home)] if not services else [*check_ports(), *check_records(home)])
    if services:
        require(check_named_servers())
    return home
