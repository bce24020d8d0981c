"""What a version was trained and judged on: its table of scenarios, split as its own run split it.

The share that is held out may have changed since: today's settings say nothing of what a version has seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact, ArtifactStore
from grpo.registry import ModelVersion, Registry
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.split import split
from grpo.scenarios.table import read_scenarios, text_digest

STARTED_FROM = "started_from"
"""Tag of a version that a retraining made: digest of the checkpoint whose weights it began with."""


class TrainingData(BaseModel):
    """A table, and how the run that trained on it split it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenarios: Artifact
    validation_fraction: float
    limit: int | None


class _Sides(BaseModel):
    """The part of a run's scenario settings that decides the sides."""

    validation_fraction: float
    limit: int | None = None


def training_data(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> TrainingData:
    """What a version was trained and judged on, by its own provenance."""
    sides = _Sides.model_validate(models.provenance(version).config["scenarios"])
    table = artifacts.folder("scenarios", version.tags["scenarios"])
    return TrainingData(scenarios=table, validation_fraction=sides.validation_fraction, limit=sides.limit)


def data_lineage(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> tuple[TrainingData, ...]:
    """What the weights of a version have seen: its own material, and that of each version before it, newest first."""
    by_checkpoint = {one.tags.get("checkpoint_sha256"): one for one in reversed(models.versions(version.name))}
    found = {version.checkpoint.sha256: training_data(models, artifacts, version)}
    while (start := version.tags.get(STARTED_FROM)) in by_checkpoint and start is not None and start not in found:
        version = by_checkpoint[start]
        found[start] = training_data(models, artifacts, version)
    return tuple(found.values())


def evaluation_scenarios(artifacts: ArtifactStore, seen: TrainingData) -> list[Scenario]:
    """The whole held-out side, and so also what a limit kept from being played."""
    path = artifacts.path(seen.scenarios) / SCENARIOS_FILE
    return list(read_scenarios(path, ids=split(path, validation_fraction=seen.validation_fraction, limit=None).heldout))


def training_digests(artifacts: ArtifactStore, seen: Iterable[TrainingData]) -> set[str]:
    """Digests of the texts of all training sides."""
    digests: set[str] = set()
    for one in seen:
        path = artifacts.path(one.scenarios) / SCENARIOS_FILE
        sides = split(path, validation_fraction=one.validation_fraction, limit=one.limit)
        digests.update(text_digest(scenario) for scenario in read_scenarios(path, ids=sides.train))
    return digests
