"""Validation split of a tuning study, taken from the training split."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.split import validation_split as hold_back_scenarios
from grpo_tasks.execution.stage import stage
from grpo_tasks.split import SplitResult, read_split, write_split


@stage
def validation_split(scenarios: Artifact, split: Artifact, share: float, store: str) -> SplitResult:
    """Split the training scenarios again. The held-out scenarios of `split` are in neither part."""
    artifacts = ArtifactStore(store)
    splits = hold_back_scenarios(artifacts.path(scenarios) / SCENARIOS_FILE, read_split(artifacts, split), share=share)
    return SplitResult(
        scenarios=scenarios,
        split=write_split(artifacts, splits),
        train=len(splits.train),
        heldout=len(splits.heldout),
    )
