"""Stage 3: which scenarios are trained on and which are held out."""

from __future__ import annotations

import logging
from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.environments.playable import find_refused
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.parquet import read_scenarios
from grpo.scenarios.split import Split
from grpo.scenarios.split import split as split_scenarios
from tasks.results import StageResult
from tasks.stage import Clock, stage

logger = logging.getLogger(__name__)


class SplitResult(StageResult):
    """Scenario ids of both sides, as JSON."""

    split: Artifact
    train: int
    heldout: int
    refused: int = 0
    """Scenarios that the environment cannot play."""


@stage
def split(
    scenarios: Artifact,
    heldout_share: float,
    limit: int | None,
    store: str,
    environment: EnvironmentSettings | None = None,
    max_refused_share: float = 0.0,
) -> SplitResult:
    """Split by a stable hash within each category: the same scenario is always on the same side.

    Scenarios that the environment, where one is given, cannot play are on neither side; raises `BudgetError` where they
    are too many.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    table = artifacts.path(scenarios) / SCENARIOS
    refused: dict[str, str] = {}
    if environment is not None:
        refused = find_refused(environment, read_scenarios(table), max_share=max_refused_share)
    for reason in refused.values():
        logger.warning("left out: %s", reason)
    sides = split_scenarios(table, heldout_share=heldout_share, limit=limit, refused=refused)

    def write(path: Path) -> None:
        path.write_text(sides.model_dump_json(), encoding="utf-8")

    return SplitResult(
        split=artifacts.put_file("split", ".json", write),
        train=len(sides.train),
        heldout=len(sides.heldout),
        refused=len(refused),
        compute_s=clock.seconds,
    )


def read_split(artifacts: ArtifactStore, artifact: Artifact) -> Split:
    """Read a split back."""
    return Split.model_validate_json(artifacts.path(artifact).read_bytes())
