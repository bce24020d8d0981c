"""What a version was trained and judged on: its table of scenarios, split as its own run split it.

The share that is held out may have changed since: today's settings say nothing of what a version has seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact, ArtifactStore
from grpo.registry import ModelVersion, Registry
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.parquet import read_scenarios, text_digest
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.split import split

STARTED_FROM = "started_from"
"""Tag of a version that a retraining made: digest of the checkpoint whose weights it began with."""


class Material(BaseModel):
    """A table, and how the run that trained on it split it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenarios: Artifact
    heldout_share: float
    limit: int | None


class _Sides(BaseModel):
    """The part of a run's scenario settings that decides the sides."""

    heldout_share: float
    limit: int | None = None


def material(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> Material:
    """What a version was trained and judged on, by its own provenance."""
    sides = _Sides.model_validate(models.provenance(version).config["scenarios"])
    table = artifacts.folder("scenarios", version.tags["scenarios"])
    return Material(scenarios=table, heldout_share=sides.heldout_share, limit=sides.limit)


def lineage(models: Registry, artifacts: ArtifactStore, version: ModelVersion) -> tuple[Material, ...]:
    """What the weights of a version have seen: its own material, and that of each version before it, newest first."""
    by_checkpoint = {one.tags.get("checkpoint_sha256"): one for one in reversed(models.versions(version.name))}
    found = {version.checkpoint.sha256: material(models, artifacts, version)}
    while (start := version.tags.get(STARTED_FROM)) in by_checkpoint and start is not None and start not in found:
        version = by_checkpoint[start]
        found[start] = material(models, artifacts, version)
    return tuple(found.values())


def judged_on(artifacts: ArtifactStore, seen: Material) -> list[Scenario]:
    """The whole held-out side, and so also what a limit kept from being played."""
    path = artifacts.path(seen.scenarios) / SCENARIOS
    return list(read_scenarios(path, ids=split(path, heldout_share=seen.heldout_share, limit=None).heldout))


def trained_on(artifacts: ArtifactStore, seen: Iterable[Material]) -> set[str]:
    """Digests of the texts of all training sides."""
    digests: set[str] = set()
    for one in seen:
        path = artifacts.path(one.scenarios) / SCENARIOS
        sides = split(path, heldout_share=one.heldout_share, limit=one.limit)
        digests.update(text_digest(scenario) for scenario in read_scenarios(path, ids=sides.train))
    return digests
