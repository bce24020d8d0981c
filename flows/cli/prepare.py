"""`grpo init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Overrides, console
from grpo.config.commented_yaml import commented_yaml
from grpo.config.pipeline import PipelineConfig, load_config
from grpo.errors import ConfigError
from grpo.storage.files import write_atomically


def init(
    path: Annotated[Path, typer.Option(help="File to write.")] = Path("config.yaml"),
    start: Annotated[
        Path | None, typer.Option("--from", help="Config whose settings are written; the quickstart if none is named.")
    ] = None,
    override: Overrides = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a config of your own, with every setting, what it means and its default; it runs as it is.

    Example: grpo init --path config.yaml --set name=mine
    """
    from flows.shipped import QUICKSTART

    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; name another --path, or replace it with --force")
    settings = load_config(start or QUICKSTART, tuple(override or ()))
    write_atomically(path, commented_yaml(settings if start else _from_here(settings)))
    console.print(f"{path} written; look at it, then: grpo train {path} --dry-run", soft_wrap=True)


def _from_here(settings: PipelineConfig) -> PipelineConfig:
    """The quickstart with the files that ship, wherever the command is called."""
    from flows.shipped import ROOT

    if Path.cwd() == ROOT:
        return settings
    document = settings.model_dump(mode="json")
    for section, key in (
        (document["policy"], "model"),
        *((source, "path") for source in document["scenarios"]["sources"]),
    ):
        shipped = ROOT / section[key]
        if not Path(section[key]).exists() and shipped.exists():
            section[key] = os.fspath(shipped)
    return PipelineConfig.model_validate(document)
