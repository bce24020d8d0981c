"""A new project from the shipped template, grpo://project."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

from pydantic import BaseModel, TypeAdapter, ValidationError

from grpo.config.base import RunName
from grpo.config.pipeline import PipelineConfig
from grpo.config.retraining import RetrainConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import ConfigError
from grpo.scenario import Scenario
from grpo.storage.files import write_atomically
from grpo.storage.shipped import shipped_folder

SCHEMA = "schema.json"
_NAMED = (".yaml", ".md")
"""Suffixes of files in which `$name` is replaced by the project's name."""


_SCHEMAS: dict[str, type[BaseModel]] = {
    "config": PipelineConfig,
    "retrain": RetrainConfig,
    "tune": TuneConfig,
    "scenario": Scenario,
}


def schema_text(name: str) -> str:
    """JSON Schema of a kind of file."""
    schema = TypeAdapter(_SCHEMAS[name]).json_schema()
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def make_project(folder: Path, *, force: bool = False) -> None:
    """Write the files of a project, which is named like its folder, and the JSON Schema of its config.

    Raises `ConfigError` if the name of the folder cannot be the name of a run, or if a file exists and `force` is not
    set.
    """
    try:
        name = TypeAdapter(RunName).validate_python(folder.resolve().name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ConfigError(
            f"the run and its model are named like the folder, and {folder.name!r} is not such a name ({reason}). Name "
            "another folder"
        ) from error
    files = {}
    template = shipped_folder() / "project"
    for source in sorted(template.rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            text = source.read_text(encoding="utf-8")
            target = folder / source.relative_to(template).with_name(source.name.replace("gitignore", ".gitignore"))
            files[target] = Template(text).substitute(name=name) if source.suffix in _NAMED else text
    files[folder / SCHEMA] = schema_text("config")
    existing = [str(path) for path in files if path.exists()]
    if existing and not force:
        raise ConfigError(f"{existing[0]} exists. Name another folder, or replace its files with --force")
    for path, text in files.items():
        write_atomically(path, text)
