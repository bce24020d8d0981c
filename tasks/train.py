"""Stage 6: one GRPO update from Parquet → checkpoint k+1."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.training import TrainingSettings
from grpo.learner.checkpoints import read_state
from grpo.learner.update import UpdateMetrics
from grpo.learner.update import update as update_policy
from tasks.base import Checkpoint
from tasks.stage import Clock, stage


class TrainResult(Checkpoint):
    """The new checkpoint and what the update did."""

    metrics: UpdateMetrics


@stage
def train(
    scored: Artifact,
    parent: Artifact,
    base: Artifact,
    settings: TrainingSettings,
    iteration: int,
    seed: int,
    store: str,
) -> TrainResult:
    """Train the parent checkpoint on a scored rollout; ends in an error when nothing was learned."""
    clock = Clock()
    artifacts = ArtifactStore(store)
    found: list[UpdateMetrics] = []

    def write(folder: Path) -> None:
        found.append(
            update_policy(
                [artifacts.path(scored)],
                artifacts.path(parent),
                artifacts.path(base),
                folder,
                settings,
                seed=seed,
                iteration=iteration,
            )
        )

    checkpoint = artifacts.put_folder("checkpoint", write)
    return TrainResult(
        checkpoint=checkpoint,
        policy=read_state(artifacts.path(checkpoint)).policy_hash,
        metrics=found[0],
        compute_s=clock.seconds,
    )
