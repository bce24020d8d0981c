"""Stage 6: one GRPO update from Parquet → checkpoint k+1."""

from __future__ import annotations

from pathlib import Path

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.training import TrainingSettings
from grpo.learner.checkpoints import read_state
from grpo.learner.update import UpdateMetrics, UpdateSkipped
from grpo.learner.update import update as update_policy
from tasks.base import Checkpoint
from tasks.slots import holds_gpu_slot
from tasks.stage import Clock, stage


class TrainResult(Checkpoint):
    """The new checkpoint and what the update did."""

    metrics: UpdateMetrics


@stage
@holds_gpu_slot
def train(
    scored: tuple[Artifact, ...],
    parent: Artifact,
    base: Artifact,
    settings: TrainingSettings,
    iteration: int,
    seed: int,
    store: str,
) -> TrainResult:
    """Train the parent checkpoint on the scored rounds of a rollout.

    A later rollout that teaches nothing, as when all of it succeeds, leaves the policy as it is. The first must teach
    something, and an update must change something: else the stage fails.
    """
    clock = Clock()
    artifacts = ArtifactStore(store)
    found: list[UpdateMetrics] = []

    def write(folder: Path) -> None:
        found.append(
            update_policy(
                [artifacts.path(one) for one in scored],
                artifacts.path(parent),
                artifacts.path(base),
                folder,
                settings,
                seed=seed,
                iteration=iteration,
                base_artifact=base,
            )
        )

    try:
        checkpoint = artifacts.put_folder("checkpoint", write)
    except UpdateSkipped as skipped:
        checkpoint = parent
        found.append(skipped.metrics)
    return TrainResult(
        checkpoint=checkpoint,
        policy=read_state(artifacts.path(checkpoint)).policy_hash,
        metrics=found[0],
        compute_s=clock.seconds,
    )
