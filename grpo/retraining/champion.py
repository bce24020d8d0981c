"""The version in service and what it was made from, read without loading a model."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from mlflow.exceptions import MlflowException
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact, ArtifactStore
from grpo.evaluation.document import Evaluation
from grpo.evaluation.report import read_report
from grpo.registry import Registry
from grpo.retraining.gates import spoken
from grpo.retraining.intake import CONVERSATIONS, SEEN
from grpo.scenarios.ingest import SCENARIOS
from grpo.scenarios.parquet import read_scenarios
from grpo.scenarios.scenario import Scenario

_ENOUGH_LIVE = 50
"""Conversations of before from which on they, not the scenarios, say what users used to talk about."""


class Champion(BaseModel):
    """The version in service, as far as a retraining needs it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name and version, `support-desk/3`."""
    registered: datetime
    checkpoint: Artifact
    scenarios: Artifact
    """Table that it was trained and judged on."""
    conversations: Artifact | None
    """Conversations that there were when it was trained; None for a version that no retraining made."""
    evaluation: Evaluation | None
    """How it was judged; None where its run was cut off before its report."""


def champion(models: Registry, artifacts: ArtifactStore, model: str) -> Champion | None:
    """The champion of a registered model; None while nothing is in service."""
    found = models.champion(model)
    if found is None:
        return None
    created = models.client.get_model_version(found.name, str(found.version)).creation_timestamp
    known = found.tags.get(CONVERSATIONS)
    return Champion(
        name=f"{found.name}/{found.version}",
        registered=datetime.fromtimestamp(created / 1000, UTC),
        checkpoint=found.checkpoint,
        scenarios=artifacts.folder("scenarios", found.tags["scenarios"]),
        conversations=artifacts.folder(CONVERSATIONS, known) if known else None,
        evaluation=_evaluation(models, found.run_id),
    )


def since(table: Path, champion: Champion | None, artifacts: ArtifactStore) -> list[Scenario]:
    """The conversations of a table that were not there when the champion was trained."""
    before: set[str] = set()
    if champion is not None:
        before.update(one.id for one in read_scenarios(artifacts.path(champion.scenarios) / SCENARIOS))
        if champion.conversations is not None:
            before.update(one.id for one in read_scenarios(artifacts.path(champion.conversations) / SEEN))
    return [one for one in read_scenarios(table) if one.id not in before]


def known_topics(champion: Champion | None, artifacts: ArtifactStore) -> list[str]:
    """What users say in the champion's data: its conversations where there are enough, else its scenarios."""
    if champion is None:
        return []
    if champion.conversations is not None:
        live = [spoken(one) for one in read_scenarios(artifacts.path(champion.conversations) / SEEN)]
        if len(live) >= _ENOUGH_LIVE:
            return live
    return [spoken(one) for one in read_scenarios(artifacts.path(champion.scenarios) / SCENARIOS)]


def _evaluation(models: Registry, run_id: str) -> Evaluation | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            models.client.download_artifacts(run_id, "report.json", folder)
        except (MlflowException, OSError):
            return None
        return read_report(Path(folder) / "report.json").evaluation
