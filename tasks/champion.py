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
from tasks.intake import CONVERSATIONS
from tasks.register import registry


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


def champion(model: str, store: str) -> Champion | None:
    """The champion of a registered model; None while nothing is in service."""
    models, artifacts = registry(), ArtifactStore(store)
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
        evaluation=_evaluation(found.run_id),
    )


def _evaluation(run_id: str) -> Evaluation | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            registry().client.download_artifacts(run_id, "report.json", folder)
        except (MlflowException, OSError):
            return None
        return read_report(Path(folder) / "report.json").evaluation
