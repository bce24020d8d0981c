"""Steps of `prefect deploy`: what prefect.yaml takes from elsewhere, so that it stands once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows import settings
from grpo.config.yaml_file import read_document


def plan(file: str | None = None) -> dict[str, Any]:
    """The settings in a YAML file, with what it extends, as `config`; the quiet environment as `environment`."""
    return {"config": read_document(Path(file)) if file else {}, "environment": settings.quiet()}
