"""Config of a registered version, which names the user's code.

Validating a config makes the folders of its objects importable, so the caller has to verify the provenance first. Even
then a config is refused if it imports from a folder in which others can put files: artifacts, and what was downloaded
from MLflow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grpo.config.loading import describe_errors
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ConfigError
from grpo.registry.provenance import Provenance
from grpo.storage.fetched import user_temp_folder
from grpo.storage.home import home

IMPORT_FROM = "import_from"


def recorded_config(address: str, provenance: Provenance, *, without: Collection[str] = ()) -> PipelineConfig:
    """Config of the run that registered a version.

    `without` are sections that the caller does not need. They have their defaults, because a version may be of a
    release with other settings there. Raises `ConfigError` if other sections have settings that this release does not
    know, or if the config imports the user's code from a folder of artifacts.
    """
    check_import_folders(address, provenance)
    document = {name: section for name, section in provenance.config.items() if name not in without}
    try:
        return PipelineConfig.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(describe_errors(error, PipelineConfig, document))
        raise ConfigError(
            f"the config that {address} was trained with cannot be read by this release: {problems}. Use the release "
            "that registered it, or train it again"
        ) from error


def check_import_folders(address: str, provenance: Provenance) -> None:
    """Raise `ConfigError` if a config imports the user's code from a folder of artifacts. Imports nothing."""
    for folder in import_folders(provenance.config):
        for place in (user_temp_folder(), home() / "mlartifacts", home() / "artifacts"):
            if Path(folder).resolve().is_relative_to(place.resolve()):
                raise ConfigError(
                    f"{address} imports code from {folder}, a folder of artifacts, in which others can put files. Put "
                    "the code into a folder of your own, and train with that"
                )


def import_folders(settings: Any) -> Iterator[str]:
    """Folders of the user's code that a config names, however deep."""
    if isinstance(settings, dict):
        if isinstance(folder := settings.get(IMPORT_FROM), str):
            yield folder
        settings = list(settings.values())
    if isinstance(settings, list):
        for part in settings:
            yield from import_folders(part)
