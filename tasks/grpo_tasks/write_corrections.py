"""Demonstrations or preference pairs from corrections of served replies, for the training of a retraining."""

from __future__ import annotations

from typing import Literal

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.served_tuning import CorrectionCounts, collect_corrections, write_demonstrations, write_pairs
from grpo.scenarios.table import read_scenarios
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage


class CorrectionsResult(StageResult):
    """A file of demonstrations or pairs, one per correction."""

    written: Artifact
    counts: CorrectionCounts


@stage
def write_corrections(
    sources: tuple[ServedSource, ...],
    content: str,
    mixture: Artifact,
    settings: CurationSettings,
    method: Literal["sft", "dpo"],
    max_corrections: int,
    store: str,
) -> CorrectionsResult:
    """Redact and write the corrections of the conversations in the training split of a mixture.

    They are demonstrations if `method` is sft, and preference pairs if it is dpo. `content` is the digest of the
    sources.
    """
    artifacts = ArtifactStore(store)
    trained = {scenario.id for scenario in read_scenarios(artifacts.path(mixture)) if scenario.split == "train"}
    collected = collect_corrections(
        map(join_served, sources), settings, trained=trained, max_corrections=max_corrections
    )
    with artifacts.new_file("corrections", ".jsonl") as new:
        if method == "sft":
            write_demonstrations(new.path, (item.demonstration for item in collected.used))
        else:
            write_pairs(new.path, collected.used)
    return CorrectionsResult(written=new.artifact, counts=collected.counts)
