"""Champion and last challenger of a model: training data, conversations, evaluation and production metrics."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from mlflow.exceptions import MlflowException
from pydantic import Field

from grpo.artifacts import Artifact, ArtifactStore
from grpo.errors import SignatureError
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Evaluation
from grpo.log.record_index import microseconds
from grpo.policy.weights.registered import EVALUATION_DIGEST
from grpo.registry import ModelVersion, Registry
from grpo.retraining.curation import CONVERSATIONS, REDACTED
from grpo.retraining.data_lineage import TrainingData, data_lineage, folder_of_run
from grpo.retraining.table_texts import TableTexts
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.storage.documents import Document
from grpo.tables import open_parquet

_ENOUGH_LIVE = 50
"""Number of earlier conversations from which drift is measured against them instead of against the scenarios."""


class Champion(Document):
    """The version in service, and the data that it was trained on."""

    name: str
    """Name and version, `support-desk/3`."""
    registered: datetime
    checkpoint: Artifact
    data_lineage: tuple[TrainingData, ...] = Field(min_length=1)
    """Training data of its weights: its own, then the data of each version that it descends from."""
    conversations: Artifact | None
    """Conversations known when it was trained. None if it was not made by a retraining."""
    evaluation: Evaluation | None
    """Its evaluation. None if its run was interrupted before its report."""

    @property
    def training_data(self) -> TrainingData:
        """Training data of its own run."""
        return self.data_lineage[0]


def champion(models: Registry, artifacts: ArtifactStore, model: str, *, follow_alias: bool = False) -> Champion | None:
    """Read the champion of a registered model, or return None if it has none. Raises like `Registry.champion`."""
    version = models.champion(model, follow_alias=follow_alias)
    if version is None:
        return None
    known = version.tags.get(CONVERSATIONS)
    return Champion(
        name=f"{version.name}/{version.version}",
        registered=_registered(models, version),
        checkpoint=version.checkpoint,
        data_lineage=data_lineage(models, artifacts, version),
        conversations=folder_of_run(artifacts, version, CONVERSATIONS, known) if known else None,
        evaluation=_evaluation(models, version),
    )


class Challenger(Document):
    """Newest retrained version that was evaluated against the champion, with any verdict.

    Its training data does not count as new, because otherwise a refused version would start a retraining on the same
    data again.
    """

    name: str
    """Name and version, `support-desk/4`."""
    registered: datetime
    conversations: Artifact
    """Conversations known when it was trained."""


def last_challenger(
    models: Registry, artifacts: ArtifactStore, model: str, champion: Champion | None
) -> Challenger | None:
    """Find the last challenger of the champion, or None if there is none.

    Without a champion it is the last retrained version. A version that was rolled back counts if it was evaluated
    against the present champion.
    """
    for version in reversed(models.versions(model)):
        conversations = version.tags.get(CONVERSATIONS)
        against = champion is None or version.tags.get("champion_sha256") == champion.checkpoint.sha256
        if conversations and against and (champion is None or champion.name != f"{version.name}/{version.version}"):
            return Challenger(
                name=f"{version.name}/{version.version}",
                registered=_registered(models, version),
                conversations=folder_of_run(artifacts, version, CONVERSATIONS, conversations),
            )
    return None


def new_conversations(
    table: Path, artifacts: ArtifactStore, champion: Champion | None, challenger: Challenger | None = None
) -> TableTexts:
    """Conversations of a table that were unknown when the champion and the last challenger were trained."""
    known = [pa.array([], pa.string())]
    if champion is not None:
        known.append(TableTexts(_scenarios(artifacts, champion)).ids)
    for version in (champion, challenger):
        if version is not None and version.conversations is not None:
            known.append(TableTexts(artifacts.path(version.conversations) / REDACTED).ids)
    return TableTexts(table, without=pa.concat_arrays(known))


def known_topics(
    artifacts: ArtifactStore, champion: Champion | None, challenger: Challenger | None = None
) -> Sequence[str]:
    """User texts of the conversations that were known when the last challenger was trained.

    Without a challenger, the champion's conversations are read. If fewer than 50 conversations are known, the texts of
    the champion's scenarios are returned instead.
    """
    if champion is None:
        return ()
    known = challenger.conversations if challenger is not None else champion.conversations
    if known is not None:
        texts = TableTexts(artifacts.path(known) / REDACTED)
        if len(texts) >= _ENOUGH_LIVE:
            return texts
    return TableTexts(_scenarios(artifacts, champion))


def production_metrics(live: Path, model: str, since: datetime | None = None) -> dict[str, list[float]]:
    """Values of each metric in the served conversations of a version (`support-desk/3`), oldest first.

    `live` is the table that curation has written of all conversations of serving logs.
    """
    table = open_parquet(live).read()
    table = table.filter(pc.equal(table.column("model"), model))
    if since is not None:
        table = table.filter(pc.greater_equal(table.column("time"), microseconds(since)))
    table = table.sort_by([("time", "ascending"), ("id", "ascending")])
    return {name: table.column(name).drop_null().to_pylist() for name in ("reward", "rating")}


def _scenarios(artifacts: ArtifactStore, champion: Champion) -> Path:
    return artifacts.path(champion.training_data.scenarios) / SCENARIOS_FILE


def _registered(models: Registry, version: ModelVersion) -> datetime:
    registered = models.client.get_model_version(version.name, str(version.version))
    return datetime.fromtimestamp(registered.creation_timestamp / 1000, UTC)


def _evaluation(models: Registry, version: ModelVersion) -> Evaluation | None:
    """Signed evaluation of a version, from the report of its run, or None if there is none.

    Raises `SignatureError` if the report has another evaluation than the one that was signed.
    """
    if EVALUATION_DIGEST not in version.tags:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            models.client.download_artifacts(version.run_id, "report.json", folder)
        except (MlflowException, OSError):
            return None
        evaluation = read_report(Path(folder) / "report.json").evaluation
    if evaluation is not None and evaluation.digest != version.tags[EVALUATION_DIGEST]:
        raise SignatureError(
            f"report.json of run {version.run_id} has another evaluation of {version.address} than the one that was "
            "signed: it was changed. Restore it from a backup, or promote another version"
        )
    return evaluation
