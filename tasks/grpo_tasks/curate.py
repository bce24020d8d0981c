"""Curation of logged conversations: required fields, licence, consent, contamination, PII redaction, duplicates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import Source
from grpo.identity.cache_identity import stage_key
from grpo.registry.retention import REGISTERED, Retention
from grpo.retraining.curation import CONVERSATIONS, DAYS, CurationCounts, curate_conversations
from grpo.retraining.data_lineage import TrainingData, evaluation_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import TableScenarios, read_scenarios
from grpo_tasks.execution.parts import StoredParts
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import Call, stage
from grpo_tasks.split import read_split

RETRAINING = "retraining"
"""Owner of the conversations that a retraining was planned from. The name of its config is added."""


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
    """Filter conversations. A conversation is refused if it is held out in `base` or was held out for the champion.

    `content` is the digest of the sources.
    """
    artifacts = ArtifactStore(store)
    table, splits = artifacts.path(base) / SCENARIOS_FILE, read_split(artifacts, split)
    parts = StoredParts(store, DAYS)
    judged = evaluation_scenarios(artifacts, champion) if champion is not None else ()
    with artifacts.new_folder(CONVERSATIONS) as new:
        counts = curate_conversations(
            sources,
            new.path,
            known=TableScenarios(table, splits.train),
            heldout=[*read_scenarios(table, ids=splits.heldout), *judged],
            settings=settings,
            parts=parts,
        )
    parts.renew()
    return CurationResult(conversations=new.artifact, counts=counts)


def keep_conversations(call: Call[CurationResult], result: CurationResult, registered: Iterable[str]) -> None:
    """Keep the result of this call for today and tomorrow, and remove conversations that were last used earlier.

    `registered` are the digests of conversations that registered versions were trained on. These are always kept.
    """
    store = ArtifactStore(call.inputs["store"])
    retention, key = Retention(store), stage_key(call.stage.name, call.inputs)
    for digest in registered:
        retention.keep(store.remaining(store.folder(CONVERSATIONS, digest)), REGISTERED)
    retention.renew(CONVERSATIONS, {key: result.conversations}, today=datetime.now(UTC).date())


def keep_planned(conversations: Artifact, name: str, store: str) -> None:
    """Keep the conversations that this retraining is planned from, and release the conversations of its last plan."""
    retention, owner = Retention(ArtifactStore(store)), f"{RETRAINING}.{name}"
    retention.keep(conversations, owner)
    for earlier in retention.kept(owner):
        if earlier.sha256 != conversations.sha256:
            retention.release(earlier, owner)
