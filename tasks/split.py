"""Stage 3: which scenarios are trained on and which are held out."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.split import Split
from grpo.scenarios.split import split as split_scenarios
from tasks.results import StageResult
from tasks.stage import Clock, stage


class SplitResult(StageResult):
    """Scenario ids of both sides, as JSON."""

    split: Artifact
    train: int
    heldout: int


@stage
def split(scenarios: Artifact, heldout_share: float, limit: int | None, store: str) -> SplitResult:
    """Split by a stable hash within each category: the same scenario is always on the same side."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    sides = split_scenarios(artifacts.path(scenarios) / SCENARIOS, heldout_share=heldout_share, limit=limit)

    def write(path: Path) -> None:
        path.write_text(sides.model_dump_json(), encoding="utf-8")

    return SplitResult(
        split=artifacts.put_file("split", ".json", write),
        train=len(sides.train),
        heldout=len(sides.heldout),
        compute_s=clock.seconds,
    )


def read_split(artifacts: ArtifactStore, artifact: Artifact) -> Split:
    """Read a split back."""
    return Split.model_validate_json(artifacts.path(artifact).read_bytes())
