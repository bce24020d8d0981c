"""One GRPO update from Parquet → checkpoint k+1."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.learner.metrics import UpdateMetrics
from grpo_tasks.gpu_slots import holds_gpu_slot
from grpo_tasks.load_base import Checkpoint
from grpo_tasks.stage import stage


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
    renderer: RendererSettings | None,
    iteration: int,
    seed: int,
    store: str,
    samplers: tuple[str, ...] = (),
) -> TrainResult:
    """Train the parent checkpoint on the scored rounds of a rollout.

    `samplers` are the earlier policies that may have generated tokens of a continuous rollout.

    If a later rollout has no learning signal, e.g. because all its episodes succeed, the policy stays as it is. Raises
    `NoLearningSignal` if the first rollout has none, and `NoEffect` if the update changes no weight.
    """
    from grpo.identity.code import source_digest
    from grpo.learner.checkpoints import read_state
    from grpo.learner.update import update as update_policy

    artifacts = ArtifactStore(store)
    with artifacts.new_folder("checkpoint") as new:
        result = update_policy(
            [artifacts.path(rollout) for rollout in scored],
            artifacts.path(parent),
            artifacts.path(base),
            new.path,
            settings,
            seed=seed,
            iteration=iteration,
            base_artifact=base,
            renderer=renderer,
            samplers=samplers,
            sources=source_digest() if settings.nodes > 1 else None,
        )
        new.kept = result.changed
    checkpoint = new.artifact if result.changed else parent
    policy = read_state(artifacts.path(checkpoint)).policy_hash
    return TrainResult(checkpoint=checkpoint, policy=policy, metrics=result.metrics)
