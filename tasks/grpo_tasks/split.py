"""Training and held-out split of the scenarios."""

from __future__ import annotations

import logging

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.environments.catalog import find_unplayable
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.split import Split
from grpo.scenarios.split import split as split_scenarios
from grpo.scenarios.table import read_scenarios
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage

logger = logging.getLogger(__name__)


class SplitResult(StageResult):
    """Scenarios, and their ids in both splits, as JSON."""

    scenarios: Artifact
    split: Artifact
    train: int
    heldout: int
    excluded: int = 0
    """Scenarios that the environment cannot play."""


@stage
def split(
    scenarios: Artifact,
    validation_fraction: float,
    limit: int | None,
    store: str,
    environment: EnvironmentSettings | None = None,
    max_refused_share: float = 0.0,
) -> SplitResult:
    """Split by a stable hash within each category, so that a scenario is always in the same split.

    If an environment is given, scenarios that it cannot play are in neither split. Raises `BudgetError` if they are too
    many.
    """
    artifacts = ArtifactStore(store)
    table = artifacts.path(scenarios) / SCENARIOS_FILE
    excluded: dict[str, str] = {}
    if environment is not None:
        excluded = find_unplayable(environment, read_scenarios(table), max_fraction=max_refused_share)
    for reason in excluded.values():
        logger.warning("a scenario is left out of the split: %s", reason)
    splits = split_scenarios(table, validation_fraction=validation_fraction, limit=limit, excluded=excluded)
    return SplitResult(
        scenarios=scenarios,
        split=write_split(artifacts, splits),
        train=len(splits.train),
        heldout=len(splits.heldout),
        excluded=len(excluded),
    )


def write_split(artifacts: ArtifactStore, splits: Split) -> Artifact:
    """Store a split as JSON."""
    with artifacts.new_file("split", ".json") as new:
        new.path.write_text(splits.model_dump_json(), encoding="utf-8")
    return new.artifact


def read_split(artifacts: ArtifactStore, artifact: Artifact) -> Split:
    """Read a split back."""
    return Split.model_validate_json(artifacts.path(artifact).read_bytes())
