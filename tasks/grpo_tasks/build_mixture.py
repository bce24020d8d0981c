"""Training mixture of a retraining: conversations and base scenarios."""

from __future__ import annotations

import logging
from collections.abc import Collection

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.config.retraining import MixtureSettings
from grpo.environments.catalog import make_environment_without_model, unplayable_reasons
from grpo.retraining.curation import ACCEPTED
from grpo.retraining.data_lineage import TrainingData, evaluation_scenarios, training_digests
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.mixture import mix as mix_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios, start_digest
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import stage
from grpo_tasks.split import read_split

logger = logging.getLogger(__name__)

UNPLAYABLE = "both splits, environment"
"""Count of the conversations that the environment cannot play, in `MixtureCounts.left_out`."""


class MixtureResult(StageResult):
    """A table of scenarios with declared splits."""

    mixture: Artifact
    counts: MixtureCounts


@stage
def build_mixture(
    base: Artifact,
    split: Artifact,
    conversations: Artifact,
    new_ids: Collection[str],
    lineage: tuple[TrainingData, ...],
    settings: MixtureSettings,
    validation_fraction: float,
    seed: int,
    store: str,
    environment: EnvironmentSettings | None = None,
) -> MixtureResult:
    """Mix both kinds within the bounds of the settings. Scenarios that the champion was evaluated on stay held out.

    `lineage` is the data lineage of the champion. Without a champion it is empty. Conversations that the environment
    cannot play are left out, because clients write them, and too many of them would end the run.
    """
    artifacts = ArtifactStore(store)
    judged = evaluation_scenarios(artifacts, lineage[0]) if lineage else []
    table, splits = artifacts.path(base) / SCENARIOS_FILE, read_split(artifacts, split)
    accepted = list(read_scenarios(artifacts.path(conversations) / ACCEPTED))
    unplayable = {}
    if environment is not None:
        unplayable = unplayable_reasons(make_environment_without_model(environment), accepted)
    with artifacts.new_file("mixture", ".parquet") as new:
        counts = mix_scenarios(
            new.path,
            base_train=list(read_scenarios(table, ids=splits.train)),
            base_heldout=list(read_scenarios(table, ids=splits.heldout)),
            conversations=[conversation for conversation in accepted if conversation.id not in unplayable],
            new_ids=new_ids,
            judged=set(map(start_digest, judged)),
            trained=training_digests(artifacts, lineage),
            settings=settings,
            validation_fraction=validation_fraction,
            seed=seed,
        )
    if unplayable:
        logger.warning("%d conversations cannot be played, first: %s", len(unplayable), next(iter(unplayable.values())))
        counts = counts.model_copy(update={"left_out": {**counts.left_out, UNPLAYABLE: len(unplayable)}})
    return MixtureResult(mixture=new.artifact, counts=counts)
