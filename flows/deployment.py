"""Steps of `prefect deploy`: what prefect.yaml takes from elsewhere, so that it stands once."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from flows.local import settings
from grpo.config.loading import load_settings


def plan(file: str | None = None, kind: str = "grpo.config.pipeline:PipelineConfig") -> dict[str, Any]:
    """The settings of this kind in a YAML file, whole, as `config`, and the quiet environment as `environment`.

    Raises `ConfigError` for a file that cannot be used.
    """
    config = load_settings(Path(file), pkgutil.resolve_name(kind)) if file else None
    return {
        "config": config.model_dump(mode="json", exclude_unset=True) if config else {},
        "environment": settings.quiet(),
    }
