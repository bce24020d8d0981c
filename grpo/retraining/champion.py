"""Champion and last challenger of a model: training data, conversations, evaluation and production metrics."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from mlflow.exceptions import MlflowException
from pydantic import Field

from grpo.artifacts import Artifact, ArtifactStore, local_path
from grpo.config.scenarios import ConversationLogSource, ServedSource, Source
from grpo.evaluation.report import read_report
from grpo.evaluation.schema import Evaluation
from grpo.registry import ModelVersion, Registry
from grpo.retraining.curation import CONVERSATIONS, REDACTED
from grpo.retraining.data_lineage import TrainingData, data_lineage
from grpo.retraining.filters import masked_user_text
from grpo.scenarios.conversation_log import ConversationLog, LoggedConversation
from grpo.scenarios.data_errors import try_call
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.readers.served import join_served
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.table import read_scenarios
from grpo.storage.documents import Document

_ENOUGH_LIVE = 50
"""Earlier conversations from which on drift is measured against them and not against the scenarios."""


class Champion(Document):
    """The version in service and the data of its training."""

    name: str
    """Name and version, `support-desk/3`."""
    registered: datetime
    checkpoint: Artifact
    data_lineage: tuple[TrainingData, ...] = Field(min_length=1)
    """Training data of its weights: its own, then that of each version before it."""
    conversations: Artifact | None
    """Conversations known when it was trained; None for a version that was not retrained."""
    evaluation: Evaluation | None
    """Its evaluation; None for a run that was interrupted before its report."""

    @property
    def training_data(self) -> TrainingData:
        """Training data of its own run."""
        return self.data_lineage[0]


def champion(models: Registry, artifacts: ArtifactStore, model: str) -> Champion | None:
    """Read the champion of a registered model; None without one."""
    version = models.champion(model)
    if version is None:
        return None
    known = version.tags.get(CONVERSATIONS)
    return Champion(
        name=f"{version.name}/{version.version}",
        registered=_registered(models, version),
        checkpoint=version.checkpoint,
        data_lineage=data_lineage(models, artifacts, version),
        conversations=artifacts.folder(CONVERSATIONS, known) if known else None,
        evaluation=_evaluation(models, version.run_id),
    )


class Challenger(Document):
    """Newest retrained version that was evaluated against the champion, with any verdict.

    Its training data does not count as new: a refused version does not start a retraining on the same data.
    """

    name: str
    """Name and version, `support-desk/4`."""
    registered: datetime
    conversations: Artifact
    """Conversations known when it was trained."""


def last_challenger(
    models: Registry, artifacts: ArtifactStore, model: str, champion: Champion | None
) -> Challenger | None:
    """Find the last challenger of the champion, or the last retrained version without a champion; None without either.

    A version that was rolled back was evaluated against the present champion, and counts.
    """
    for version in reversed(models.versions(model)):
        conversations = version.tags.get(CONVERSATIONS)
        against = champion is None or version.tags.get("champion_sha256") == champion.checkpoint.sha256
        if conversations and against and (champion is None or champion.name != f"{version.name}/{version.version}"):
            return Challenger(
                name=f"{version.name}/{version.version}",
                registered=_registered(models, version),
                conversations=artifacts.folder(CONVERSATIONS, conversations),
            )
    return None


def new_conversations(
    table: Path, artifacts: ArtifactStore, champion: Champion | None, challenger: Challenger | None = None
) -> list[Scenario]:
    """Conversations of a table that were unknown when the champion and the last challenger were trained."""
    known: set[str] = set()
    if champion is not None:
        known.update(scenario.id for scenario in _scenarios(artifacts, champion))
    for version in (champion, challenger):
        if version is not None and version.conversations is not None:
            known.update(scenario.id for scenario in read_scenarios(artifacts.path(version.conversations) / REDACTED))
    return [scenario for scenario in read_scenarios(table) if scenario.id not in known]


def known_topics(
    artifacts: ArtifactStore, champion: Champion | None, challenger: Challenger | None = None
) -> list[str]:
    """User texts of the conversations of the last challenger, or of the champion without one.

    Fewer than 50 are replaced by the texts of the champion's scenarios.
    """
    if champion is None:
        return []
    known = challenger.conversations if challenger is not None else champion.conversations
    if known is not None:
        texts = [masked_user_text(scenario) for scenario in read_scenarios(artifacts.path(known) / REDACTED)]
        if len(texts) >= _ENOUGH_LIVE:
            return texts
    return [masked_user_text(scenario) for scenario in _scenarios(artifacts, champion)]


def production_metrics(sources: Iterable[Source], model: str, since: datetime | None = None) -> dict[str, list[float]]:
    """Values of each metric in the logged conversations of a version (`support-desk/3`), oldest first.

    Damaged files are skipped here; curation counts them.
    """
    logged = itertools.chain.from_iterable(map(_logged, sources))
    served = sorted(
        (item for item in logged if item.model == model and (since is None or item.time >= since)),
        key=lambda item: (item.time, item.id),
    )
    return {
        "reward": [item.reward for item in served if item.reward is not None],
        "rating": [item.rating for item in served if item.rating is not None],
    }


def _logged(source: Source) -> Iterator[LoggedConversation]:
    """Conversations of a log; none of another source."""
    if isinstance(source, ConversationLogSource):
        entries = ConversationLog(local_path(source.path)).read(source.files)
        yield from (entry.conversation for entry in entries if entry.conversation is not None)
    elif isinstance(source, ServedSource):
        for conversation in join_served(source).conversations:
            logged = try_call(conversation.logged)
            if not isinstance(logged, Exception):
                yield logged


def _scenarios(artifacts: ArtifactStore, champion: Champion) -> Iterable[Scenario]:
    return read_scenarios(artifacts.path(champion.training_data.scenarios) / SCENARIOS_FILE)


def _registered(models: Registry, version: ModelVersion) -> datetime:
    registered = models.client.get_model_version(version.name, str(version.version))
    return datetime.fromtimestamp(registered.creation_timestamp / 1000, UTC)


def _evaluation(models: Registry, run_id: str) -> Evaluation | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            models.client.download_artifacts(run_id, "report.json", folder)
        except (MlflowException, OSError):
            return None
        return read_report(Path(folder) / "report.json").evaluation
