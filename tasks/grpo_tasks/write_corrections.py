"""Demonstrations from corrections of served replies, for the fine-tuning of a retraining."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource
from grpo.retraining.corrections import CorrectionCounts, collect_corrections, write_demonstrations
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.table import read_scenarios
from grpo_tasks.results import StageResult
from grpo_tasks.stage import stage


class CorrectionsResult(StageResult):
    """A file of demonstrations, one a correction."""

    demonstrations: Artifact
    counts: CorrectionCounts


@stage
def write_corrections(
    sources: tuple[ServedSource, ...], content: str, mixture: Artifact, settings: CurationSettings, store: str
) -> CorrectionsResult:
    """Redact and write the corrections of the conversations in the training split of a mixture.

    `content` is the digest of the sources.
    """
    artifacts = ArtifactStore(store)
    trained = {scenario.id for scenario in read_scenarios(artifacts.path(mixture)) if scenario.split == "train"}
    conversations = (conversation for source in sources for conversation in join_served(source).conversations)
    collected = collect_corrections(conversations, settings, trained=trained)
    with artifacts.new_file("corrections", ".jsonl") as new:
        write_demonstrations(new.path, collected.used)
    return CorrectionsResult(demonstrations=new.artifact, counts=collected.counts)
