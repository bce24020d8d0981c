"""Policy update from scored rollouts: the train stage.

It opens the policy that generated the rollouts, makes a batch of them, lets an engine take the optimizer steps, and
saves the next checkpoint. If the rollouts have no learning signal, no checkpoint is written, because it would be equal
to the one before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from grpo.algorithms.catalog import make_algorithm
from grpo.artifacts import Artifact
from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.errors import NoEffect, NoLearningSignal
from grpo.learner.batch import build_batch, to_samples
from grpo.learner.checkpoints import CheckpointState, read_state, resume, save
from grpo.learner.critic import Critic
from grpo.learner.distillation import Teacher
from grpo.learner.distributed import ProcessGroup, UpdateRequest
from grpo.learner.engines import train_with_dpo, train_with_learner, train_with_trl
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs, local_logprobs, local_states, reference_kl
from grpo.learner.metrics import UpdateMetrics
from grpo.learner.performance import model_flops_utilization
from grpo.learner.teacher_prompts import TeacherPrompts
from grpo.learner.trust_region import TrustRegionLearner
from grpo.learner.worker_group import run_workers
from grpo.policy.context import context_limit
from grpo.policy.renderer import make_renderer
from grpo.policy.tokenizer import check_same_tokenizer
from grpo.policy.transformers.adapters import add_adapters, copy_model, has_adapters
from grpo.policy.transformers.device import reproducible_kernels
from grpo.policy.transformers.dtype import Dtype, cast_frozen, cast_mismatched_buffers
from grpo.policy.transformers.forward.passes import microbatches
from grpo.policy.transformers.model import TransformersPolicy, check_hash, load_sharded, weights_hash
from grpo.policy.transformers.model_cache import model_cache
from grpo.policy.transformers.sharding import reshard, shard_model
from grpo.renderers.chat_template import Renderer
from grpo.tables import read_all
from grpo.trajectories import Trajectory, group

_KL_SAMPLES = 48
"""Trajectories per iteration for which the KL to the base is measured, informative ones if there are any."""
_OF_TOKENS = ("entropy", "clip_share", "masked_share", "ratio", "taught_share")
_OF_STEPS = ("gradient_norm", "learning_rate", "loss", "margin")
_SHARDED_METHODS = (local_logprobs, local_states)
"""Functions of a model that run on gathered layers if its weights are sharded."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Result of an update."""

    changed: bool
    """False if a later rollout has no learning signal, e.g. because every episode succeeds. Then no checkpoint is
    written, and the policy is the parent."""
    metrics: UpdateMetrics


def update(
    scored: Sequence[Path],
    parent: Path,
    base: Path,
    target: Path,
    settings: TrainingSettings,
    *,
    seed: int,
    iteration: int,
    base_artifact: Artifact | None = None,
    renderer: RendererSettings | None = None,
    samplers: tuple[str, ...] = (),
    keep_parent: bool = False,
    teacher: Path | None = None,
    hints: Mapping[str, str] | None = None,
    sources: str | None = None,
) -> UpdateResult:
    """Train the policy of checkpoint `parent` on scored rollouts and write the checkpoint `target`.

    The policy comes from the model cache if it is there, and returns to it under its new hash. A checkpoint of adapters
    records their `base_artifact`. If `settings.workers` is above 1, the update runs in that many workers. Other nodes
    refuse it unless `sources` is the digest of their own sources. With an `importance_sampling_cap`, tokens may also
    come from the parent's parent or from the earlier policies `samplers`. With `keep_parent` a copy is trained, because
    rollouts go on with the parent. `teacher` is the checkpoint of the teacher of a distillation, if it is another
    model, and `hints` are what only a teacher reads, by the ids of scenarios.

    If an iteration after the first has no learning signal, the result is unchanged and `target` is not a checkpoint.

    Raises `NoLearningSignal` if the first iteration has none, `NoEffect` if no weight changed, and `RatioError` and
    `PolicyError`.
    """
    request = UpdateRequest(
        scored=tuple(path.absolute() for path in scored),
        parent=parent.absolute(),
        base=base.absolute(),
        target=target.absolute(),
        settings=settings,
        seed=seed,
        iteration=iteration,
        base_artifact=base_artifact,
        renderer=renderer,
        samplers=samplers,
        keep_parent=keep_parent,
        teacher=None if teacher is None else teacher.absolute(),
        hints=dict(hints or {}),
        sources=sources,
    )
    try:
        if settings.workers > 1:
            metrics = UpdateMetrics.model_validate_json(run_workers(request))
        else:
            metrics = run_update(request, ProcessGroup())
    except NoLearningSignal as error:
        if iteration == 0:
            raise
        logger.info("iteration %d leaves the policy unchanged: %s", iteration, error)
        metrics = _measure_unchanged(scored, parent, base, max_tokens=settings.microbatch_tokens)
        return UpdateResult(changed=False, metrics=metrics)
    return UpdateResult(changed=True, metrics=metrics)


@reproducible_kernels()
def run_update(request: UpdateRequest, process_group: ProcessGroup) -> UpdateMetrics:
    """Run this process's part of an update. Rank 0 writes the checkpoint. Raises as `update` does."""
    settings, seed, iteration = request.settings, request.seed, request.iteration
    state = read_state(request.parent)
    policy, reference = _open(request)
    held, reference = policy.in_dtype(state.dtype), reference.in_dtype(state.dtype)
    before = weights_hash(policy.model) if has_adapters(policy.model) else policy.hash  # adapters may be new
    groups, renderer = group(read_all(request.scored)), make_renderer(policy.tokenizer, settings=request.renderer)
    teacher, prompts = _open_teacher(request, held, reference, renderer)
    batch = build_batch(
        groups,
        settings,
        policy_hash=state.policy_hash,
        earlier_hashes=_earlier_policies(state.parent, request) if settings.importance_sampling_cap else (),
        renderer_hash=renderer.hash,
        teacher=prompts,
    )
    algorithm = make_algorithm(settings.algorithm, scale_by_std=settings.scale_by_std)
    learner_class = TrustRegionLearner if algorithm.update == "trust_region" else Learner
    learner = learner_class(
        held.model,
        settings,
        master=policy.model,
        reference=reference.model if settings.beta else None,
        teacher=teacher,
        process_group=process_group,
    )
    resume(learner, request.parent)
    critic, value_loss, mismatch = None, None, 0.0
    if algorithm.critic:
        width = policy.model.config.get_text_config().hidden_size
        critic = Critic(width, settings.critic, seed=seed, device=policy.model.device)
        critic.resume(request.parent)
        batch, value_targets = critic.estimate_advantages(
            held.model, batch, max_tokens=learner.microbatch_tokens, scale=algorithm.scale_by_std
        )
        value_loss = critic.fit(value_targets)[-1]
    began = time.perf_counter()
    if algorithm.update == "preferences":
        steps = train_with_dpo(
            learner, policy.tokenizer, groups, reference=reference.model, seed=seed, iteration=iteration
        )
    elif settings.engine == "trl":
        steps, mismatch = train_with_trl(learner, policy.tokenizer, groups, seed=seed, iteration=iteration)
    else:
        steps, mismatch = train_with_learner(learner, batch, seed=seed, iteration=iteration)
    seconds = time.perf_counter() - began
    learner.optimizer.zero_grad(set_to_none=True)  # so that saving does not take more memory than a step

    def write() -> None:
        policy.hash = weights_hash(policy.model)
        if policy.hash == before:
            raise _unchanged_error(request, steps[-1], is_trust_region=algorithm.update == "trust_region")
        _write_checkpoint(request, learner, policy, state, critic if process_group.rank == 0 else None)

    def kl_to_base() -> float:
        return reference_kl(reference.model, batch.samples[:_KL_SAMPLES], max_tokens=learner.microbatch_tokens)

    # not with shards, because both gather them, and not with adapters, because the KL disables them
    kl = _in_background(write, kl_to_base, is_possible=settings.sharding != "sharded" and reference is not held)
    model_cache.put(policy)
    tokens_per_s = sum(metrics["processed_tokens"] for metrics in steps) / seconds
    return UpdateMetrics(
        informative_share=batch.informative_share,
        kl_to_base=kl,
        **mean_metrics(steps),
        teacher_kl=_mean_teacher_kl(steps),
        tokens=int(sum(metrics["tokens"] for metrics in steps)),
        clipped_rewards=batch.clipped_rewards,
        mismatch_kl=mismatch,
        step_kl=max((metrics["step_kl"] for metrics in steps if "step_kl" in metrics), default=None),
        value_loss=value_loss,
        tokens_per_s=tokens_per_s,
        mfu=model_flops_utilization(
            policy.model, tokens_per_s=tokens_per_s / process_group.size, precision=settings.precision
        ),
    )


def _in_background(write: Callable[[], None], measure: Callable[[], float], *, is_possible: bool) -> float:
    """Write while the value is measured, because writing waits for the disk. Returns when both have ended."""
    if not is_possible:
        write()
        return measure()
    with ThreadPoolExecutor(max_workers=1) as background:
        written = background.submit(write)
        value = measure()
        written.result()
    return value


def _write_checkpoint(
    request: UpdateRequest,
    learner: Learner,
    policy: TransformersPolicy,
    parent: CheckpointState,
    critic: Critic | None,
) -> None:
    """Write the policy and the optimizer into the folder of the target, and the critic if it is given."""
    settings = request.settings
    request.target.mkdir(parents=True, exist_ok=True)
    save(
        policy,
        learner,
        request.target,
        parent=parent.policy_hash,
        dtype=parent.dtype,
        base=request.base_artifact if has_adapters(policy.model) else None,
        source=request.parent if settings.sharding == "sharded" and settings.lora is None else None,
    )
    if critic is not None:
        critic.save(request.target)


def _earlier_policies(parent: str | None, request: UpdateRequest) -> tuple[str, ...]:
    """Earlier policies than the one that is trained. An importance ratio corrects their tokens."""
    return tuple(filter(None, (parent, *request.samplers)))


def mean_metrics(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of an update: means over its tokens, or over its steps if a metric has one value per step."""
    tokens = [metrics["tokens"] for metrics in steps]
    return {
        name: float(np.average([metrics[name] for metrics in steps], weights=tokens if by_token else None))
        for names, by_token in ((_OF_TOKENS, True), (_OF_STEPS, False))
        for name in names
        if name in steps[0]
    }


def _mean_teacher_kl(steps: Sequence[dict[str, float]]) -> float | None:
    """Mean over the tokens of all steps that have a teacher. None without distillation."""
    if "teacher_kl" not in steps[0]:
        return None
    taught = [metrics["taught_share"] * metrics["tokens"] for metrics in steps]
    distances = [metrics["teacher_kl"] for metrics in steps]
    return float(np.average(distances, weights=taught)) if any(taught) else None


def _unchanged_error(
    request: UpdateRequest, step: dict[str, float], *, is_trust_region: bool
) -> NoLearningSignal | NoEffect:
    if is_trust_region:
        return NoLearningSignal(
            f"no learning signal: iteration {request.iteration} has no step within KL "
            f"{request.settings.trust_region.max_kl:g} that lowers the loss. Raise "
            "training.trust_region.line_search_steps or max_kl"
        )
    return NoEffect(
        f"no effect: iteration {request.iteration} changed no weight (learning rate {step['learning_rate']:g}, "
        f"gradient norm {step['gradient_norm']:g}). Raise training.learning_rate"
    )


def _open(request: UpdateRequest) -> tuple[TransformersPolicy, TransformersPolicy]:
    """The policy to train and its reference, which is the base, or with adapters the policy itself without them.

    Sharded weights are read by parts, also under adapters. Each process holds whole adapters.
    """
    parent, base, settings = request.parent, request.base, request.settings
    state, base_hash = read_state(parent), read_state(base).policy_hash
    is_base = state.policy_hash == base_hash
    if settings.sharding == "sharded" and settings.lora is None:
        return _open_sharded(parent, dtype=state.dtype), _open_sharded(base, dtype=state.dtype)
    if settings.sharding == "sharded" and is_base:
        policy = _open_sharded(parent)
    elif settings.sharding == "sharded":
        policy = _open_sharded(parent, dtype=state.dtype, base=base)
    # copied if still in use: the base is the reference without adapters, and rollouts may go on with the parent
    elif (is_base and settings.lora is None) or request.keep_parent:
        policy = model_cache.get(state.policy_hash, parent, base=base, frozen=state.dtype)
        policy = TransformersPolicy(
            copy_model(policy.model), policy.tokenizer, policy_hash=policy.hash, path_check=policy.path_check
        )
    else:
        policy = model_cache.take(state.policy_hash, parent, base=base, frozen=state.dtype)
    if settings.lora is None:
        return policy, model_cache.get(base_hash, base)
    if is_base:
        add_adapters(policy.model, settings.lora, seed=request.seed)
        cast_frozen(policy.model, state.dtype)
    return policy, policy


def _open_teacher(
    request: UpdateRequest, policy: TransformersPolicy, reference: TransformersPolicy, renderer: Renderer
) -> tuple[Teacher, TeacherPrompts] | tuple[None, None]:
    """Teacher of the update and the maker of what it reads, in the dtype of the policy. None without distillation."""
    settings = request.settings.distillation
    if settings is None:
        return None, None
    if request.teacher is not None:
        other = (
            _open_sharded(request.teacher, dtype=read_state(request.parent).dtype)
            if request.settings.sharding == "sharded"
            else model_cache.get(read_state(request.teacher).policy_hash, request.teacher)
        )
        check_same_tokenizer(
            policy.tokenizer, other.tokenizer, address=settings.teacher_model_name_or_path or str(request.teacher)
        )
        teacher = Teacher(model=other.in_dtype(read_state(request.parent).dtype).model)
    elif settings.teacher_model_kind == "live":
        teacher = Teacher(model=policy.model, with_adapters=True)
    else:
        teacher = Teacher(model=reference.model)
    limit = context_limit(teacher.model.config)
    return teacher, TeacherPrompts(settings, renderer, hints=request.hints, max_context=limit)


def _open_sharded(folder: Path, *, dtype: Dtype = "float32", base: Path | None = None) -> TransformersPolicy:
    """This process's part of a checkpoint, verified by the hash of all parts.

    Passes are in the `dtype`. If the checkpoint has adapters, their `base` holds its weights in it.
    """
    state = read_state(folder)
    passes = torch.float32 if base is not None else getattr(torch, dtype)
    policy = load_sharded(
        folder,
        path_check=state.path_check,
        shard=lambda model: shard_model(model, *_SHARDED_METHODS, dtype=passes),
        base=base,
        frozen=dtype,
    )
    check_hash(policy, state.policy_hash, folder)
    if passes != torch.float32:
        cast_mismatched_buffers(policy.model, passes)
        reshard(policy.model)
    return policy


def _measure_unchanged(scored: Sequence[Path], parent: Path, base: Path, *, max_tokens: int) -> UpdateMetrics:
    """Metrics of an iteration without a step: entropy and KL of the unchanged policy."""
    samples = to_samples(read_all(scored))[:_KL_SAMPLES]
    state = read_state(parent)
    policy = model_cache.get(state.policy_hash, parent, base=base, frozen=state.dtype)
    micros = microbatches(policy.model, samples, max_tokens=max_tokens)
    with torch.no_grad():
        entropy = [compute_logprobs(policy.model, micro).entropy for micro in micros]
    reference = model_cache.get(read_state(base).policy_hash, base).model
    return UpdateMetrics(
        kl_to_base=reference_kl(reference, samples, max_tokens=max_tokens),
        entropy=float(torch.cat(entropy).mean()),
    )


def measure_kl_to_base(trajectories: Sequence[Trajectory], base: Path, *, max_tokens: int) -> float:
    """KL(sampler ‖ base) in nats per token over the completion tokens of these trajectories."""
    policy = model_cache.get(read_state(base).policy_hash, base)
    return reference_kl(policy.model, to_samples(trajectories), max_tokens=max_tokens)
