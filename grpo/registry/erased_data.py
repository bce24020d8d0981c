"""Refusal to register a run if data that it was trained on was erased while it ran."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import PipelineConfig
from grpo.errors import ErasedError

_DIGITS = 20
"""Digits of a digest in the address of an artifact."""


def refuse_erased(config: PipelineConfig, scenarios: Artifact, artifacts: ArtifactStore) -> None:
    """Raise `ErasedError` if the scenarios of a run, or an artifact that its config names, have been erased."""
    text = config.model_dump_json()
    erased = {Path(name).stem for name in artifacts.documents.names("erased")}
    if scenarios.sha256 in erased or any(f"/{digest[:_DIGITS]}" in text for digest in erased):
        raise ErasedError(
            f"{config.name} is not registered: conversations that it was trained on were erased while it ran, because "
            "a user asked for it. Start the retraining again"
        )
