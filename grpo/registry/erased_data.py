"""Served conversations that a run was trained on, and refusal to register the run if some were erased while it ran."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.dpo import WrittenPairs
from grpo.config.pipeline import PipelineConfig
from grpo.config.sft import WrittenDemonstrations
from grpo.errors import ErasedError

TUNED_ON = "tuned_on"
"""Tag of a version: first digits of the digests of the demonstrations and pairs from serving logs, with commas."""
_DIGITS = 20
"""Digits of a digest in the address of an artifact."""
_WRITTEN = re.compile(r"/corrections/([0-9a-f]{20})")
"""Address of demonstrations or pairs that a stage has written from a serving log."""


def tuned_on(config: PipelineConfig) -> dict[str, str]:
    """Tag of the demonstrations and pairs from serving logs that a run was trained on. Empty if there are none."""
    tuned = (config.sft and config.sft.demonstrations, config.dpo and config.dpo.pairs)
    addresses = [part.path for part in tuned if isinstance(part, (WrittenDemonstrations, WrittenPairs))]
    digits = sorted(digits for address in addresses for digits in _WRITTEN.findall(address))
    return {TUNED_ON: ",".join(digits)} if digits else {}


def is_tuned_on(tags: Mapping[str, str], digests: Collection[str]) -> bool:
    """True if a version with these tags was trained on an artifact with one of these digests."""
    own = tags.get(TUNED_ON, "").split(",")
    return any(digest[:_DIGITS] in own for digest in digests)


def refuse_erased(config: PipelineConfig, scenarios: Artifact, artifacts: ArtifactStore) -> None:
    """Raise `ErasedError` if the scenarios of a run, or an artifact that its config names, have been erased."""
    text = config.model_dump_json()
    erased = {Path(name).stem for name in artifacts.documents.names("erased")}
    if scenarios.sha256 in erased or any(f"/{digest[:_DIGITS]}" in text for digest in erased):
        raise ErasedError(
            f"{config.name} is not registered: conversations that it was trained on were erased while it ran, because "
            "a user asked for it. Start the retraining again"
        )
