"""Optimizer steps of an update by each engine: the learner, TRL's GRPOTrainer, or TRL's DPOTrainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo import progress
from grpo.algorithms.reductions import Denominators
from grpo.learner.batch import Batch, Sample, make_minibatches, to_samples
from grpo.learner.learner import Learner
from grpo.learner.logprobs import check_mismatch, mismatch_kl, with_proximal_logprobs
from grpo.trajectories import TrajectoryGroup

Metrics = list[dict[str, float]]
"""Loss, gradient norm, learning rate, and means over the completion tokens, for each step."""


def train_with_learner(learner: Learner, batch: Batch, *, seed: int, iteration: int) -> tuple[Metrics, float]:
    """Train on the rollout once per epoch, in steps of one minibatch; returns metrics and the mismatch KL."""
    settings = learner.settings
    rng = np.random.default_rng([seed, iteration])
    mismatch = 0.0
    only_step = (
        settings.epochs == 1
        and settings.num_mini_batches in (None, 1)
        and (settings.groups_per_step or len(batch.groups)) >= len(batch.groups)
    )
    if settings.importance_sampling_cap is not None and not only_step:
        samples, mismatch = _off_policy(learner, batch.samples)
        batch = batch.with_samples(samples)
    minibatches = [
        minibatch for _ in range(settings.epochs) for minibatch in make_minibatches(batch.groups, settings, rng=rng)
    ]
    denominators = Denominators(
        sequences=batch.sample_count * settings.epochs / len(minibatches),
        tokens=batch.token_count * settings.epochs / len(minibatches),
        normalizer=settings.length_normalizer,
    )
    steps = []
    for index, minibatch in enumerate(minibatches):
        on_policy = index == 0 and settings.importance_sampling_cap is None
        progress_of_run = (iteration + index / len(minibatches)) / settings.iterations
        metrics = learner.step(
            minibatch, denominators, on_policy=on_policy, only_step=only_step, progress=progress_of_run
        )
        mismatch = metrics.get("mismatch_kl", mismatch)
        steps.append(metrics)
        progress.report("train", index + 1, len(minibatches), loss=metrics["loss"], entropy=metrics["entropy"])
    return steps, mismatch


def train_with_trl(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    seed: int,
    iteration: int,
) -> tuple[Metrics, float]:
    """Take one step per epoch on all groups by TRL's GRPOTrainer, with the learner's optimizer and learning rate."""
    from grpo.learner.trl.grpo_trainer import train_grpo  # the import takes 2.5 s

    settings = learner.settings
    mismatch = 0.0
    if settings.importance_sampling_cap is not None:
        samples = to_samples(trajectory for group in groups for trajectory in group.trajectories)
        _, mismatch = _off_policy(learner, samples)
    steps = train_grpo(
        learner.model,
        tokenizer,
        groups,
        settings,
        optimizer=learner.optimizer,
        learning_rate=_schedule(learner, iteration=iteration, steps=settings.epochs),
        reference=learner.reference,
        seed=seed,
    )
    return steps, mismatch


def train_with_dpo(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    reference: PreTrainedModel,
    seed: int,
    iteration: int,
) -> Metrics:
    """DPO on the best and the worst trajectory of each group, by TRL's DPOTrainer, with the learner's optimizer."""
    from grpo.learner.trl.dpo_trainer import make_preference_pairs, train_dpo

    settings = learner.settings
    pairs = make_preference_pairs(groups).pairs
    per_step = min(settings.groups_per_step or len(pairs), len(pairs))
    steps = settings.epochs * math.ceil(len(pairs) / max(1, per_step))
    return train_dpo(
        learner.model,
        tokenizer,
        pairs,
        reference=reference,
        optimizer=learner.optimizer,
        learning_rate=_schedule(learner, iteration=iteration, steps=steps),
        beta=settings.beta,
        epochs=settings.epochs,
        pairs_per_step=per_step,
        max_tokens=settings.microbatch_tokens,
        max_grad_norm=settings.max_grad_norm,
        seed=seed,
    )


def _schedule(learner: Learner, *, iteration: int, steps: int) -> Callable[[int], float]:
    """Learning rate of the learner for each of `steps` steps of another trainer. The learner counts the steps."""
    first = learner.step_count

    def rate(step: int) -> float:
        learner.step_count = first + step
        return learner.learning_rate((iteration + step / steps) / learner.settings.iterations)

    return rate


def _off_policy(learner: Learner, samples: Sequence[Sample]) -> tuple[list[Sample], float]:
    """Samples with their proximal log-probabilities, and the KL divergence of the sampler from that policy.

    Raises `RatioError` if the divergence exceeds `max_mismatch_kl`.
    """
    settings = learner.settings
    budget = learner.microbatch_tokens
    corrected = with_proximal_logprobs(learner.model, samples, precision=settings.precision, max_tokens=budget)
    distance = mismatch_kl(corrected)
    check_mismatch(distance, settings)
    return corrected, distance
