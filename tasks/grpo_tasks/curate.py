"""Curation of logged conversations: required fields, licence, consent, contamination, PII redaction, duplicates."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import Source
from grpo.retraining.curation import CONVERSATIONS, CurationCounts, curate_conversations
from grpo.retraining.data_lineage import TrainingData, evaluation_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo_tasks.results import StageResult
from grpo_tasks.split import read_split
from grpo_tasks.stage import stage


class CurationResult(StageResult):
    """A folder with the conversations that were accepted, seen and refused."""

    conversations: Artifact
    counts: CurationCounts


@stage
def curate(
    sources: tuple[Source, ...],
    content: str,
    base: Artifact,
    split: Artifact,
    champion: TrainingData | None,
    settings: CurationSettings,
    store: str,
) -> CurationResult:
    """Filter conversations; those that are held out of `base`, or were held out of the champion's data, are refused.

    `content` is the digest of the sources.
    """
    artifacts = ArtifactStore(store)
    judged = evaluation_scenarios(artifacts, champion) if champion is not None else []
    table, splits = artifacts.path(base) / SCENARIOS_FILE, read_split(artifacts, split)
    with artifacts.new_folder(CONVERSATIONS) as new:
        counts = curate_conversations(
            sources,
            new.path,
            known=read_scenarios(table, ids=splits.train),
            heldout=[*read_scenarios(table, ids=splits.heldout), *judged],
            settings=settings,
        )
    return CurationResult(conversations=new.artifact, counts=counts)
