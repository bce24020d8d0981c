"""One GRPO update from scored Parquet: the train stage."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from grpo import progress
from grpo.algorithms.reductions import Denominators
from grpo.config.training import TrainingSettings
from grpo.errors import NoEffect
from grpo.learner.checkpoints import read_state, resume, save
from grpo.learner.learner import Learner, reference_kl, score_tokens, with_old_logprobs
from grpo.learner.packing import microbatches
from grpo.learner.samples import Sample, build_batch, deal
from grpo.policy.transformers.model import TransformersPolicy, residents, weights_hash
from grpo.tables import read_all
from grpo.trajectories import Trajectory, group

_KL_SAMPLES = 48
"""Trajectories whose KL to the base is measured in each iteration, informative ones where there are any."""


class UpdateMetrics(BaseModel):
    """What one update did."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    informative_share: float
    kl_to_base: float
    entropy: float
    clip_share: float
    ratio: float
    gradient_norm: float
    learning_rate: float
    loss: float
    tokens: int


def update(
    scored: Sequence[Path],
    parent: Path,
    base: Path,
    target: Path,
    settings: TrainingSettings,
    *,
    seed: int,
    iteration: int,
) -> UpdateMetrics:
    """Train the policy of checkpoint `parent` on scored rollouts and write the checkpoint `target`.

    The policy is taken from memory when this process holds it, and left there under its new hash.
    Raises `NoLearningSignal`, `RatioError`, `PolicyError`, and `NoEffect` when no weight changed.
    """
    state = read_state(parent)
    trajectories = read_all(scored)
    batch = build_batch(group(trajectories), settings, policy_hash=state.policy_hash)
    base_policy = residents.get(read_state(base).policy_hash, base)
    policy = residents.take(state.policy_hash, parent)
    if policy is base_policy:  # the first update: the base stays as it is, a copy is trained
        residents.put(base_policy)
        policy = TransformersPolicy(copy.deepcopy(base_policy.model), base_policy.tokenizer)
    learner = Learner(policy.model, settings, reference=base_policy.model if settings.beta else None)
    resume(learner, parent)
    rng = np.random.default_rng([seed, iteration])
    measured: list[dict[str, float]] = []
    epochs = range(settings.epochs)
    hands = [hand for _ in epochs for hand in deal(batch.groups, per_hand=settings.groups_per_step, rng=rng)]
    if settings.importance_cap is not None:
        budget = settings.microbatch_tokens
        hands = [with_old_logprobs(policy.model, hand, max_tokens=budget) for hand in hands]
    of = Denominators(
        sequences=max(1, batch.sample_count * settings.epochs // len(hands)),
        tokens=max(1, batch.token_count * settings.epochs // len(hands)),
        normalizer=settings.length_normalizer,
    )
    for index, hand in enumerate(hands):
        exact = index == 0 and settings.importance_cap is None
        progress_of_run = (iteration + index / len(hands)) / settings.iterations
        metrics = learner.step(hand, of, on_policy=exact, progress=progress_of_run)
        measured.append(metrics)
        progress.report("train", index + 1, len(hands), loss=metrics["loss"], entropy=metrics["entropy"])
    policy.hash = weights_hash(policy.model)
    if policy.hash == state.policy_hash:
        raise NoEffect(
            f"no effect: iteration {iteration} left every weight as it was (learning rate "
            f"{measured[-1]['learning_rate']:g}, gradient norm {measured[-1]['gradient_norm']:g}); "
            "raise training.learning_rate"
        )
    target.mkdir(parents=True, exist_ok=True)
    save(policy, learner, target, parent=state.policy_hash)
    residents.put(policy)
    samples = [sample for samples in batch.groups for sample in samples][:_KL_SAMPLES]
    kl = reference_kl(base_policy.model, samples, max_tokens=learner.microbatch_tokens)
    means = {name: float(np.mean([metrics[name] for metrics in measured])) for name in measured[0]}
    return UpdateMetrics(
        informative_share=batch.informative_share,
        kl_to_base=kl,
        **{name: means[name] for name in ("entropy", "clip_share", "ratio", "gradient_norm", "learning_rate", "loss")},
        tokens=int(sum(metrics["tokens"] for metrics in measured)),
    )


def idle(scored: Sequence[Path], parent: Path, base: Path, *, max_tokens: int) -> UpdateMetrics:
    """What an iteration shows whose rollout taught nothing: no step was taken, entropy and KL are the policy's own."""
    spoken = [_spoken(trajectory) for trajectory in read_all(scored) if trajectory.loss_mask.any()][:_KL_SAMPLES]
    state = read_state(parent)
    policy = residents.get(state.policy_hash, parent)
    with torch.no_grad():
        entropy = [score_tokens(policy.model, micro).entropy for micro in microbatches(spoken, max_tokens=max_tokens)]
    reference = residents.get(read_state(base).policy_hash, base).model
    return UpdateMetrics(
        informative_share=0.0,
        kl_to_base=reference_kl(reference, spoken, max_tokens=max_tokens),
        entropy=float(torch.cat(entropy).mean()) if entropy else 0.0,
        clip_share=0.0,
        ratio=1.0,
        gradient_norm=0.0,
        learning_rate=0.0,
        loss=0.0,
        tokens=0,
    )


def distance_to_base(trajectories: Sequence[Trajectory], base: Path, *, max_tokens: int) -> float:
    """KL(sampler ‖ base) in nats a token over the tokens that were said in these trajectories."""
    spoken = [_spoken(trajectory) for trajectory in trajectories if trajectory.loss_mask.any()]
    policy = residents.get(read_state(base).policy_hash, base)
    return reference_kl(policy.model, spoken, max_tokens=max_tokens)


def _spoken(trajectory: Trajectory) -> Sample:
    """A trajectory to be looked at, not learned from."""
    return Sample(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask,
        sampler_logprobs=trajectory.sampler_logprobs,
        advantages=np.zeros_like(trajectory.sampler_logprobs),
        temperature=trajectory.temperature,
        place=trajectory.place,
    )
