"""The version in service, what it was made from, and who last challenged it, read without loading a model."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from mlflow.exceptions import MlflowException
from pydantic import BaseModel, ConfigDict, Field

from grpo.artifacts import Artifact, ArtifactStore
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Evaluation
from grpo.registry import ModelVersion, Registry
from grpo.retraining.curation import CONVERSATIONS, REDACTED
from grpo.retraining.data_lineage import TrainingData, data_lineage
from grpo.retraining.filters import masked_user_text
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.table import read_scenarios

_ENOUGH_LIVE = 50
"""Conversations of before from which on they, not the scenarios, say what users used to talk about."""


class Champion(BaseModel):
    """The version in service, as far as a retraining needs it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name and version, `support-desk/3`."""
    registered: datetime
    checkpoint: Artifact
    data_lineage: tuple[TrainingData, ...] = Field(min_length=1)
    """What its weights have seen: what it was trained and judged on itself, then each version before it."""
    conversations: Artifact | None
    """Conversations that there were when it was trained; None for a version that no retraining made."""
    evaluation: Evaluation | None
    """How it was judged; None where its run was cut off before its report."""

    @property
    def training_data(self) -> TrainingData:
        """What it was trained and judged on itself."""
        return self.data_lineage[0]


def champion(models: Registry, artifacts: ArtifactStore, model: str) -> Champion | None:
    """The champion of a registered model; None while nothing is in service."""
    found = models.champion(model)
    if found is None:
        return None
    known = found.tags.get(CONVERSATIONS)
    return Champion(
        name=f"{found.name}/{found.version}",
        registered=_registered(models, found),
        checkpoint=found.checkpoint,
        data_lineage=data_lineage(models, artifacts, found),
        conversations=artifacts.folder(CONVERSATIONS, known) if known else None,
        evaluation=_evaluation(models, found.run_id),
    )


class Challenger(BaseModel):
    """The newest version of a retraining that was judged against the champion, whatever became of it.

    What it was trained on has had its chance: a refused version is no reason to train another one on the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name and version, `support-desk/4`."""
    registered: datetime
    conversations: Artifact
    """Conversations that there were when it was trained."""


def last_challenger(
    models: Registry, artifacts: ArtifactStore, model: str, champion: Champion | None
) -> Challenger | None:
    """How the champion was last challenged; while nothing is in service, what was trained last. None where nothing was.

    A version that was rolled back from was judged against the one that serves again, and counts.
    """
    for one in reversed(models.versions(model)):
        conversations = one.tags.get(CONVERSATIONS)
        against = champion is None or one.tags.get("champion_sha256") == champion.checkpoint.sha256
        if conversations and against and (champion is None or champion.name != f"{one.name}/{one.version}"):
            return Challenger(
                name=f"{one.name}/{one.version}",
                registered=_registered(models, one),
                conversations=artifacts.folder(CONVERSATIONS, conversations),
            )
    return None


def new_conversations(
    table: Path, artifacts: ArtifactStore, champion: Champion | None, judged: Challenger | None = None
) -> list[Scenario]:
    """The conversations of a table that were not there when the champion was trained, nor at the last judgement."""
    before: set[str] = set()
    if champion is not None:
        before.update(
            one.id for one in read_scenarios(artifacts.path(champion.training_data.scenarios) / SCENARIOS_FILE)
        )
    for taken in (champion, judged):
        if taken is not None and taken.conversations is not None:
            before.update(one.id for one in read_scenarios(artifacts.path(taken.conversations) / REDACTED))
    return [one for one in read_scenarios(table) if one.id not in before]


def known_topics(artifacts: ArtifactStore, champion: Champion | None, judged: Challenger | None = None) -> list[str]:
    """What users were known to say: in the conversations of the last judgement or else of the champion.

    Where these are few, in the champion's scenarios.
    """
    if champion is None:
        return []
    known = judged.conversations if judged is not None else champion.conversations
    if known is not None:
        live = [masked_user_text(one) for one in read_scenarios(artifacts.path(known) / REDACTED)]
        if len(live) >= _ENOUGH_LIVE:
            return live
    return [
        masked_user_text(one)
        for one in read_scenarios(artifacts.path(champion.training_data.scenarios) / SCENARIOS_FILE)
    ]


def _registered(models: Registry, version: ModelVersion) -> datetime:
    found = models.client.get_model_version(version.name, str(version.version))
    return datetime.fromtimestamp(found.creation_timestamp / 1000, UTC)


def _evaluation(models: Registry, run_id: str) -> Evaluation | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            models.client.download_artifacts(run_id, "report.json", folder)
        except (MlflowException, OSError):
            return None
        return read_report(Path(folder) / "report.json").evaluation
