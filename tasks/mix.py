"""Conversations and base scenarios, put together into what a retraining trains on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.retraining.curation import ACCEPTED
from grpo.retraining.data_lineage import TrainingData, evaluation_scenarios, training_digests
from grpo.retraining.mixture import MixtureCounts
from grpo.retraining.mixture import mix as mix_scenarios
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios, text_digest
from tasks.results import StageResult
from tasks.split import read_split
from tasks.stage import Clock, stage


class MixResult(StageResult):
    """A table of scenarios with declared sides."""

    mixture: Artifact
    counts: MixtureCounts


@stage
def mix(
    base: Artifact,
    split: Artifact,
    conversations: Artifact,
    new_ids: Collection[str],
    data_lineage: tuple[TrainingData, ...],
    share: float,
    validation_fraction: float,
    seed: int,
    store: str,
) -> MixResult:
    """Mix both kinds in the share that is asked for; what the champion was judged on stays held out.

    `lineage` is the champion's, empty where nothing is in service.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    judged = evaluation_scenarios(artifacts, data_lineage[0]) if data_lineage else []
    table, sides = artifacts.path(base) / SCENARIOS_FILE, read_split(artifacts, split)
    found: list[MixtureCounts] = []

    def write(path: Path) -> None:
        found.append(
            mix_scenarios(
                path,
                base_train=list(read_scenarios(table, ids=sides.train)),
                base_heldout=list(read_scenarios(table, ids=sides.heldout)),
                conversations=list(read_scenarios(artifacts.path(conversations) / ACCEPTED)),
                new_ids=new_ids,
                judged=set(map(text_digest, judged)),
                trained=training_digests(artifacts, data_lineage),
                share=share,
                validation_fraction=validation_fraction,
                seed=seed,
            )
        )

    artifact = artifacts.put_file("mixture", ".parquet", write)
    return MixResult(mixture=artifact, counts=found[0], compute_s=clock.seconds)
