"""One update from scored Parquet: the train stage."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from grpo.algorithms.catalog import get_algorithm
from grpo.artifacts import Artifact
from grpo.config.training import TrainingSettings
from grpo.errors import NoEffect, NoLearningSignal
from grpo.learner.batch import build_batch, to_samples
from grpo.learner.checkpoints import read_state, resume, save
from grpo.learner.critic import Critic
from grpo.learner.engines import train_with_dpo, train_with_learner, train_with_trl
from grpo.learner.launch import UpdateRequest, run_workers
from grpo.learner.learner import Learner
from grpo.learner.logprobs import compute_logprobs, reference_kl
from grpo.learner.packing import microbatches
from grpo.learner.throughput import model_flops_utilization
from grpo.learner.trust_region import TrustRegionLearner
from grpo.learner.world import ProcessGroup
from grpo.policy.transformers.adapters import add_adapters, has_adapters
from grpo.policy.transformers.model import TransformersPolicy, model_cache, weights_hash
from grpo.renderers.chat_template import renderer_hash
from grpo.tables import read_all
from grpo.trajectories import Trajectory, group

_KL_SAMPLES = 48
"""Trajectories whose KL to the base is measured in each iteration, informative ones where there are any."""


class UpdateMetrics(BaseModel):
    """What one update did; a mean is over the tokens that the policy said."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    informative_share: float = 0.0
    kl_to_base: float
    entropy: float
    clip_share: float = 0.0
    ratio: float = 1.0
    gradient_norm: float = 0.0
    learning_rate: float = 0.0
    loss: float = 0.0
    tokens: int = 0
    clipped_rewards: int = 0
    """Rewards that were beyond `reward_clip`."""
    mismatch_kl: float = 0.0
    """KL(sampler ‖ policy) before the first step, where an importance_sampling_cap makes up for it."""
    step_kl: float | None = None
    """KL(old ‖ new) of a trust-region step."""
    margin: float | None = None
    """Of dpo: by how much pairs are told apart, beta times the difference of their log-ratios."""
    value_loss: float | None = None
    """Of the critic, after it learned from this rollout."""
    tokens_per_s: float = 0.0
    """Tokens that went through the model in training passes, those that the learner shares once."""
    mfu: float | None = None
    """Share of the accelerator's arithmetic; None where its peak is not known."""


logger = logging.getLogger(__name__)


class UpdateSkipped(Exception):
    """A later rollout has no learning signal, as when all of it succeeds: the policy stays as it is."""

    def __init__(self, metrics: UpdateMetrics) -> None:
        super().__init__("no learning signal: the policy stays as it is")
        self.metrics = metrics


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
    process_group: ProcessGroup | None = None,
) -> UpdateMetrics:
    """Train the policy of checkpoint `parent` on scored rollouts and write the checkpoint `target`.

    The policy is taken from memory when this process holds it, and left there under its new hash. A checkpoint of
    adapters notes `base_artifact`, which they are for. With several processes each is started here, and calls this
    again with its `world`; the first one writes.
    Raises `NoLearningSignal` when the first iteration has none and `UpdateSkipped` when a later one has none,
    `RatioError`, `PolicyError`, and `NoEffect` when no weight changed.
    """
    try:
        return _update(
            scored,
            parent,
            base,
            target,
            settings,
            seed=seed,
            iteration=iteration,
            base_artifact=base_artifact,
            process_group=process_group,
        )
    except NoLearningSignal as error:
        if iteration == 0 or process_group is not None:
            raise
        logger.info("iteration %d changes nothing: %s", iteration, error)
        raise UpdateSkipped(_idle(scored, parent, base, max_tokens=settings.microbatch_tokens)) from error


def _update(
    scored: Sequence[Path],
    parent: Path,
    base: Path,
    target: Path,
    settings: TrainingSettings,
    *,
    seed: int,
    iteration: int,
    base_artifact: Artifact | None,
    process_group: ProcessGroup | None,
) -> UpdateMetrics:
    if process_group is None and settings.processes > 1:
        request = UpdateRequest(
            scored=tuple(scored),
            parent=parent,
            base=base,
            target=target,
            settings=settings,
            seed=seed,
            iteration=iteration,
            base_artifact=base_artifact,
            launcher=os.getpid(),
        )
        return UpdateMetrics.model_validate_json(run_workers(request))
    process_group = process_group or ProcessGroup()
    state = read_state(parent)
    policy, reference = _open(parent, base, settings, seed=seed)
    before = weights_hash(policy.model)
    groups = group(read_all(scored))
    batch = build_batch(
        groups,
        settings,
        policy_hash=state.policy_hash,
        earlier_hash=state.parent if settings.importance_sampling_cap is not None else None,
        renderer_hash=renderer_hash(policy.tokenizer),
    )
    algorithm = get_algorithm(settings.algorithm, scale_by_std=settings.scale_by_std)
    kind = TrustRegionLearner if algorithm.update == "trust_region" else Learner
    learner = kind(
        policy.model, settings, reference=reference.model if settings.beta else None, process_group=process_group
    )
    resume(learner, parent)
    critic, value_loss, mismatch = None, None, 0.0
    if algorithm.critic:
        width = policy.model.config.hidden_size
        critic = Critic(width, settings.critic, seed=seed, device=policy.model.device)
        critic.resume(parent)
        batch, value_targets = critic.estimate_advantages(
            policy.model, batch, max_tokens=learner.microbatch_tokens, scale=algorithm.scale_by_std
        )
        value_loss = critic.fit(value_targets)[-1]
    began = time.perf_counter()
    if algorithm.update == "preferences":
        measured = train_with_dpo(
            learner, policy.tokenizer, groups, reference=reference.model, seed=seed, iteration=iteration
        )
    elif settings.engine == "trl":
        measured, mismatch = train_with_trl(learner, policy.tokenizer, groups, seed=seed, iteration=iteration)
    else:
        measured, mismatch = train_with_learner(learner, batch, seed=seed, iteration=iteration)
    seconds = time.perf_counter() - began
    policy.hash = weights_hash(policy.model)
    if policy.hash == before and algorithm.update == "trust_region":
        raise NoLearningSignal(
            f"no learning signal: iteration {iteration} found no step within KL {settings.trust_region.max_kl:g} that "
            "lowers the loss; raise training.trust_region.line_search_steps or max_kl"
        )
    if policy.hash == before:
        raise NoEffect(
            f"no effect: iteration {iteration} left every weight as it was (learning rate "
            f"{measured[-1]['learning_rate']:g}, gradient norm {measured[-1]['gradient_norm']:g}); "
            "raise training.learning_rate"
        )
    target.mkdir(parents=True, exist_ok=True)
    adapted = base_artifact if has_adapters(policy.model) else None
    save(policy, learner, target, parent=state.policy_hash, base=adapted)
    if critic is not None and process_group.rank == 0:
        critic.save(target)
    model_cache.put(policy)
    samples = [sample for members in batch.groups for sample in members][:_KL_SAMPLES]
    tokens_per_s = sum(metrics["passed"] for metrics in measured) / seconds
    names = ("entropy", "clip_share", "ratio", "gradient_norm", "learning_rate", "loss", "margin")
    return UpdateMetrics(
        informative_share=batch.informative_share,
        kl_to_base=reference_kl(reference.model, samples, max_tokens=learner.microbatch_tokens),
        **{name: float(np.mean([metrics[name] for metrics in measured])) for name in names if name in measured[0]},
        tokens=int(sum(metrics["tokens"] for metrics in measured)),
        clipped_rewards=batch.clipped_rewards,
        mismatch_kl=mismatch,
        step_kl=max((metrics["step_kl"] for metrics in measured if "step_kl" in metrics), default=None),
        value_loss=value_loss,
        tokens_per_s=tokens_per_s,
        mfu=model_flops_utilization(
            policy.model, tokens_per_s=tokens_per_s / process_group.size, precision=settings.precision
        ),
    )


def _open(
    parent: Path, base: Path, settings: TrainingSettings, *, seed: int
) -> tuple[TransformersPolicy, TransformersPolicy]:
    """The policy to be changed, and its reference: the base, or with adapters the policy itself without them."""
    policy_hash, base_hash = (read_state(folder).policy_hash for folder in (parent, base))
    first = policy_hash == base_hash
    if (
        first or settings.importance_sampling_cap is not None
    ):  # the base stays; off-policy, the sampler may still be at work
        policy = model_cache.get(policy_hash, parent, base=base)
        policy = TransformersPolicy(copy.deepcopy(policy.model), policy.tokenizer)
    else:
        policy = model_cache.take(policy_hash, parent, base=base)
    if settings.lora is None:
        return policy, model_cache.get(base_hash, base)
    if first:
        add_adapters(policy.model, settings.lora, seed=seed)
    return policy, policy


def _idle(scored: Sequence[Path], parent: Path, base: Path, *, max_tokens: int) -> UpdateMetrics:
    """Metrics of an iteration without a step: entropy and KL are those of the policy as it is."""
    said = to_samples(read_all(scored))[:_KL_SAMPLES]
    policy = model_cache.get(read_state(parent).policy_hash, parent, base=base)
    with torch.no_grad():
        entropy = [compute_logprobs(policy.model, micro).entropy for micro in microbatches(said, max_tokens=max_tokens)]
    reference = model_cache.get(read_state(base).policy_hash, base).model
    return UpdateMetrics(
        kl_to_base=reference_kl(reference, said, max_tokens=max_tokens),
        entropy=float(torch.cat(entropy).mean()) if entropy else 0.0,
    )


def measure_kl_to_base(trajectories: Sequence[Trajectory], base: Path, *, max_tokens: int) -> float:
    """KL(sampler ‖ base) in nats a token over the tokens that were said in these trajectories."""
    policy = model_cache.get(read_state(base).policy_hash, base)
    return reference_kl(policy.model, to_samples(trajectories), max_tokens=max_tokens)
