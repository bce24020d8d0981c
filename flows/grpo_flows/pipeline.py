"""Steps that flows share: prepare scenarios, train.

prepare_scenarios      ingest → validate → split
training_steps         collect_rollouts → curriculum, if there is one → train, once per iteration
                       collect_window → train, with a continuous rollout
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.environments import EnvironmentSettings
from grpo.config.pipeline import PipelineConfig, PolicySettings
from grpo.config.scenarios import ScenarioSettings
from grpo.errors import RemovedError
from grpo.evaluation.iteration import iteration_metrics
from grpo.evaluation.schema import FineTuning, IterationMetrics, PreferenceTuning, RolloutRecord, SliceMetrics
from grpo.identity.cache_identity import model_digest
from grpo.preflight.outcomes import settled
from grpo.rewards.hacking.turn_rewards import admit_turn_rewards
from grpo.scenarios.ingest import SCENARIOS_FILE
from grpo.scenarios.sources import content_hash, pin_sources
from grpo.scenarios.table import read_scenarios
from grpo_flows.steps.rollouts import Rollouts, collect_heldout, collect_rollouts, collect_window, end_window
from grpo_tasks.curriculum import CurriculumResult, curriculum
from grpo_tasks.dpo import DPOResult, dpo
from grpo_tasks.evaluate_policy import evaluate_policy
from grpo_tasks.execution.retries import patient
from grpo_tasks.execution.stage import run_all, start
from grpo_tasks.ingest import IngestResult, ingest
from grpo_tasks.load_base import BaseCheckpoint, Checkpoint, load_base
from grpo_tasks.run_checkpoints import RunCheckpoints
from grpo_tasks.sft import SFTResult, sft
from grpo_tasks.split import SplitResult, read_split, split
from grpo_tasks.train import train
from grpo_tasks.validate import ValidateResult, validate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenarios:
    """Results of the three stages that prepare scenarios."""

    ingested: IngestResult
    validated: ValidateResult
    split: SplitResult

    @property
    def artifact(self) -> Artifact:
        """The validated scenarios."""
        return self.ingested.scenarios


def prepare_scenarios(
    settings: ScenarioSettings,
    *,
    store: str,
    validation_fraction: float | None = None,
    environment: EnvironmentSettings | None = None,
) -> Scenarios:
    """Ingest, validate and split. A `validation_fraction` of 1 holds out every scenario that does not declare a split.

    If an environment is given, scenarios that it cannot play are left out.
    """
    settings = pin_sources(settings)
    bound = settings.max_quarantined_fraction
    ingested = ingest(
        sources=settings.sources,
        content=content_hash(settings.sources),
        max_quarantined_fraction=bound,
        store=store,
    )
    fraction = settings.validation_fraction if validation_fraction is None else validation_fraction
    validated = validate(scenarios=ingested.scenarios, validation_fraction=fraction, store=store)
    divided = split(
        scenarios=ingested.scenarios,
        validation_fraction=fraction,
        limit=settings.limit,
        environment=environment,
        max_refused_share=bound,
        store=store,
    )
    return Scenarios(ingested=ingested, validated=validated, split=divided)


@patient
def settle_gates(config: PipelineConfig, data: Scenarios) -> PipelineConfig:
    """The config with the metric of its gates. Raises `ConfigError` like `grpo.preflight.outcomes.settled`."""
    store = ArtifactStore(config.store)
    ids = read_split(store, data.split.split).heldout
    return settled(config, tuple(read_scenarios(store.path(data.artifact) / SCENARIOS_FILE, ids=ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration of training: its metrics and the resulting policy."""

    iteration: IterationMetrics
    policy: Checkpoint


def training_steps(
    config: PipelineConfig,
    split: SplitResult,
    base: Checkpoint,
    checkpoints: RunCheckpoints | None = None,
    collected: Callable[[RolloutRecord], None] | None = None,
) -> Iterator[Step]:
    """Roll out, score and update, once per iteration.

    With `rollout.staleness` a rollout overlaps an update. With a continuous rollout, the updates take its windows.

    `base` is the policy that the training starts from, see `starting_policies`. `collected` is called with the episodes
    of each iteration before its update, so that they are known also if the update fails.

    If a checkpoint is needed and was removed, all checkpoints are computed again from the base.
    """
    finished = 0
    try:
        for step in _steps(config, split, base, checkpoints, collected, recompute_removed=False):
            finished += 1
            yield step
    except RemovedError as error:
        logger.warning("the checkpoints of this run are computed again: %s", error)
        if checkpoints is not None:
            checkpoints.restart()
        base = starting_policies(config, base_policy(config.policy, config.store))[-1]
        again = _steps(config, split, base, checkpoints, collected, recompute_removed=True)
        for index, step in enumerate(again):
            if index >= finished:
                yield step


@patient
def in_store(store: str, checkpoint: Artifact) -> Artifact:
    """The checkpoint in this store, by its digest. If it is in another store, it is copied."""
    artifacts = ArtifactStore(store)
    if artifacts.has(checkpoint):
        return artifacts.own(checkpoint)
    from grpo.learner.checkpoints import adopt_checkpoint  # imports torch, which a run of cache hits does not need

    return adopt_checkpoint(artifacts, checkpoint)


def base_policy(policy: PolicySettings, store: str) -> BaseCheckpoint:
    """The base model as checkpoint 0."""
    return load_base(policy=policy, content=model_digest(policy), store=store)


def starting_policies(config: PipelineConfig, base: Checkpoint) -> tuple[Checkpoint, ...]:
    """The base, and the policy after each stage before GRPO that the config has: `sft`, then `dpo`."""
    policies = [base]
    if config.sft is not None:
        policies.append(sft(settings=config.sft, **_tuning_inputs(config, policies[-1])))
    if config.dpo is not None:
        policies.append(dpo(settings=config.dpo, **_tuning_inputs(config, policies[-1])))
    return tuple(policies)


def _tuning_inputs(config: PipelineConfig, policy: Checkpoint) -> dict[str, Any]:
    return {
        "base": policy.checkpoint,
        "parts": config.episode_parts,
        "max_tokens": config.training.microbatch_tokens,
        "seed": config.seed,
        "store": config.store,
    }


def measure_tuning(
    config: PipelineConfig, data: Scenarios, policies: Sequence[Checkpoint], candidate: Checkpoint
) -> tuple[FineTuning | None, PreferenceTuning | None]:
    """Results of supervised fine-tuning and of DPO. None for a stage that the run does not have.

    `policies` come from `starting_policies`.
    """

    def measure(policy: Checkpoint) -> SliceMetrics:
        heldout = collect_heldout(config, policy.checkpoint, data.split)
        evaluated = evaluate_policy(
            scored=heldout.scored, settings=config.evaluation, seed=config.seed, store=config.store
        )
        return evaluated.measurement.overall

    fine_tuning, preferences = None, None
    for before, after in pairwise(policies):
        if isinstance(after, SFTResult):
            fine_tuning = FineTuning(
                demonstrations=after.demonstrations,
                losses=after.losses,
                policy=after.policy,
                base=measure(before),
                fine_tuned=measure(after),
                candidate=measure(candidate),
            )
        if isinstance(after, DPOResult):
            preferences = PreferenceTuning(
                pairs=after.pairs,
                losses=after.losses,
                before=after.before,
                after=after.after,
                policy=after.policy,
                reference=measure(before),
                tuned=measure(after),
                candidate=measure(candidate),
            )
    return fine_tuning, preferences


def _steps(
    config: PipelineConfig,
    split: SplitResult,
    base: Checkpoint,
    checkpoints: RunCheckpoints | None,
    collected: Callable[[RolloutRecord], None] | None,
    *,
    recompute_removed: bool,
) -> Iterator[Step]:
    """Iterate from the base on. With `recompute_removed`, an update is computed again if its checkpoint was removed."""
    store, settings = ArtifactStore(config.store), config.rollout
    distilled = _distillation_inputs(config, split.scenarios)
    iterations, stale = config.training.iterations, settings.staleness > 0
    policy, ahead, past = base, None, None
    rollouts: Rollouts | None = None
    versions = [base.policy]
    try:
        for index in range(iterations):
            if settings.mode == "continuous":
                rollouts = collect_window(config, policy.checkpoint, split, iteration=index, previous=rollouts)
            else:
                rollouts = ahead or collect_rollouts(config, policy.checkpoint, split, iteration=index, past=past)
            if collected is not None:
                collected(RolloutRecord(part=index, scored=rollouts.scored))
            if index == 0:
                admit_turn_rewards(rollouts.summary.turn_rewards, config.training.turn_reward_admission)
            levels = _open_levels(config, past)
            past = _curriculum_after(config, past, rollouts) if index + 1 < iterations else None
            update = train.bind(
                scored=rollouts.scored,
                parent=policy.checkpoint,
                base=base.checkpoint,
                settings=config.training,
                renderer=config.policy.renderer,
                iteration=index,
                seed=config.seed,
                store=config.store,
                samplers=_samplers(config, versions),
                keep_parent=settings.overlaps_updates,
                **distilled,
            )
            if stale and index + 1 < iterations:
                wait = start(update)
                ahead = collect_rollouts(config, policy.checkpoint, split, iteration=index + 1, past=past)
                trained = wait()
            else:
                ahead, trained = None, run_all([update])[0]
            if recompute_removed and store.is_removed(trained.checkpoint):
                store.forget_removal(trained.checkpoint)
                trained = run_all([update])[0]
            elif index + 1 == iterations and store.is_removed(trained.checkpoint):
                # by another run of this name, after this run had ended before it registered the checkpoint
                raise RemovedError(f"{trained.checkpoint.uri} of the last iteration was removed")
            if checkpoints is not None:
                checkpoints.add(trained.checkpoint)
            policy = trained
            versions.append(trained.policy)
            metrics = iteration_metrics(
                index,
                rollouts.summary,
                trained.metrics,
                rounds=len(rollouts.rounds),
                open_levels=levels,
                window=None if rollouts.window is None else rollouts.window.window,
            )
            for warning in metrics.warnings:
                logger.warning("iteration %d: %s", index, warning)
            yield Step(iteration=metrics, policy=trained)
    finally:
        end_window(config, rollouts)


def _distillation_inputs(config: PipelineConfig, scenarios: Artifact) -> dict[str, Artifact]:
    """Inputs of the updates that only a distillation has: its teacher, and the scenarios that its hints are from."""
    settings, inputs = config.training.distillation, {}
    if settings is None:
        return {}
    if config.training.teacher is not None:
        teacher = config.policy.model_copy(update={"model": config.training.teacher})
        inputs["teacher"] = base_policy(teacher, config.store).checkpoint
    if settings.privileged_context:
        inputs["scenarios"] = scenarios
    return inputs


def _samplers(config: PipelineConfig, versions: Sequence[str]) -> tuple[str, ...]:
    """Hashes of the earlier versions that may have generated tokens of the window for the last one of `versions`."""
    if config.rollout.mode == "stages":
        return ()
    return tuple(dict.fromkeys(versions[-1 - config.rollout.max_staleness : -1]))


def _curriculum_after(
    config: PipelineConfig, past: CurriculumResult | None, rollouts: Rollouts
) -> CurriculumResult | None:
    """The curriculum after an iteration, or None if the config has none."""
    settings = config.rollout.curriculum
    if settings is None:
        return None
    previous = None if past is None else past.curriculum
    return curriculum(previous=previous, scored=rollouts.scored, settings=settings, store=config.store)


def _open_levels(config: PipelineConfig, past: CurriculumResult | None) -> tuple[str, ...]:
    """Levels of the curriculum that are open after the iteration `past`, or at the beginning."""
    if past is not None:
        return past.open_levels
    return () if config.rollout.curriculum is None else config.rollout.curriculum.levels[:1]
