"""One GRPO update from Parquet → checkpoint k+1."""

from __future__ import annotations

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.learner.metrics import UpdateMetrics
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.table import read_scenarios
from grpo_tasks.execution.gpu_slots import holds_gpu_slot
from grpo_tasks.execution.stage import stage
from grpo_tasks.load_base import Checkpoint


class TrainResult(Checkpoint):
    """The new checkpoint and what the update did."""

    metrics: UpdateMetrics


def _hints(artifacts: ArtifactStore, scenarios: Artifact | None, settings: TrainingSettings) -> dict[str, str]:
    """What only the teacher reads, by the id of the scenario."""
    from grpo.learner.teacher_prompts import hints_of

    if scenarios is None or settings.distillation is None:
        return {}
    table = artifacts.path(scenarios) / SCENARIOS_FILE
    return hints_of(read_scenarios(table), settings.distillation.privileged_context)


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
    keep_parent: bool = False,
    teacher: Artifact | None = None,
    scenarios: Artifact | None = None,
) -> TrainResult:
    """Train the parent checkpoint on the scored rounds of a rollout.

    `samplers` are the earlier policies that may have generated tokens of a continuous rollout. `keep_parent` is true if
    rollouts go on with the parent meanwhile. `teacher` is the checkpoint of a distillation's teacher, if it is another
    model, and `scenarios` have the hints that it reads, if there are any.

    If a later rollout has no learning signal, e.g. because all its episodes succeed, the policy stays as it is. Raises
    `NoLearningSignal` if the first rollout has none, and `NoEffect` if the update changes no weight.
    """
    from grpo.identity.code import source_digest
    from grpo.learner.checkpoints import read_state
    from grpo.learner.update import update as update_policy

    artifacts = ArtifactStore(store)
    with artifacts.new_folder("checkpoint", like=parent) as new:
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
            keep_parent=keep_parent,
            teacher=None if teacher is None else artifacts.path(teacher),
            hints=_hints(artifacts, scenarios, settings),
            sources=source_digest() if settings.nodes > 1 else None,
        )
        new.kept = result.changed
    checkpoint = new.artifact if result.changed else parent
    policy = read_state(artifacts.path(checkpoint)).policy_hash
    return TrainResult(checkpoint=checkpoint, policy=policy, metrics=result.metrics)
