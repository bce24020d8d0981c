"""Which training scenarios settings are chosen by."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.split import validation_split as split_validation_scenarios
from tasks.split import SplitResult, read_split
from tasks.stage import Clock, stage


@stage
def validation_split(scenarios: Artifact, split: Artifact, share: float, store: str) -> SplitResult:
    """Hold a share of the training side back; the held-out side of the split is on neither side of this one."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    sides = split_validation_scenarios(
        artifacts.path(scenarios) / SCENARIOS_FILE, read_split(artifacts, split), share=share
    )

    def write(path: Path) -> None:
        path.write_text(sides.model_dump_json(), encoding="utf-8")

    return SplitResult(
        split=artifacts.put_file("split", ".json", write),
        train=len(sides.train),
        heldout=len(sides.heldout),
        compute_s=clock.seconds,
    )
