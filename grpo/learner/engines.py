"""Who takes the steps of an update: this package's learner, TRL's trainer, or TRL's trainer on pairs of siblings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo import progress
from grpo.algorithms.reductions import Denominators
from grpo.errors import RatioError
from grpo.learner.batch import Batch, Sample, make_minibatches, to_samples
from grpo.learner.learner import Learner
from grpo.learner.logprobs import mismatch_kl, with_proximal_logprobs
from grpo.trajectories import TrajectoryGroup

Metrics = list[dict[str, float]]
"""Of each step its loss, gradient norm, learning rate, and means over the tokens that the policy said."""


def train_with_learner(learner: Learner, batch: Batch, *, seed: int, iteration: int) -> tuple[Metrics, float]:
    """Go through the rollout once an epoch, in steps of whole groups; with how far the sampler was from the policy."""
    settings = learner.settings
    rng = np.random.default_rng([seed, iteration])
    groups, mismatch = batch.groups, 0.0
    if settings.importance_sampling_cap is not None:
        known, mismatch = _off_policy(learner, [sample for members in groups for sample in members])
        corrected = iter(known)
        groups = tuple(tuple(next(corrected) for _ in members) for members in groups)
    epochs = range(settings.epochs)
    minibatches = [
        minibatch
        for _ in epochs
        for minibatch in make_minibatches(groups, groups_per_step=settings.groups_per_step, rng=rng)
    ]
    of = Denominators(
        sequences=max(1, batch.sample_count * settings.epochs // len(minibatches)),
        tokens=max(1, batch.token_count * settings.epochs // len(minibatches)),
        normalizer=settings.length_normalizer,
    )
    measured = []
    for index, minibatch in enumerate(minibatches):
        exact = index == 0 and settings.importance_sampling_cap is None
        progress_of_run = (iteration + index / len(minibatches)) / settings.iterations
        metrics = learner.step(minibatch, of, on_policy=exact, progress=progress_of_run)
        measured.append(metrics)
        progress.report("train", index + 1, len(minibatches), loss=metrics["loss"], entropy=metrics["entropy"])
    return measured, mismatch


def train_with_trl(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    seed: int,
    iteration: int,
) -> tuple[Metrics, float]:
    """One step an epoch on all groups, by TRL's GRPOTrainer, with the learner's optimizer and learning rate."""
    from grpo.learner.trl import grpo_trainer  # 2.5 s, which other engines need not pay

    settings = learner.settings
    mismatch = 0.0
    if settings.importance_sampling_cap is not None:
        samples = to_samples(trajectory for group in groups for trajectory in group.trajectories)
        _, mismatch = _off_policy(learner, samples)
    measured = grpo_trainer.train(
        learner.model,
        tokenizer,
        groups,
        settings,
        optimizer=learner.optimizer,
        learning_rate=_rates(learner, iteration=iteration, steps=settings.epochs),
        reference=learner.reference,
        seed=seed,
    )
    return measured, mismatch


def train_with_dpo(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    reference: PreTrainedModel,
    seed: int,
    iteration: int,
) -> Metrics:
    """DPO on the best and the worst sibling of each group, by TRL's DPOTrainer, with the learner's optimizer."""
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
        learning_rate=_rates(learner, iteration=iteration, steps=steps),
        beta=settings.beta,
        epochs=settings.epochs,
        pairs_per_step=per_step,
        max_tokens=settings.microbatch_tokens,
        max_grad_norm=settings.max_grad_norm,
        seed=seed,
    )


def _rates(learner: Learner, *, iteration: int, steps: int) -> Callable[[int], float]:
    """The learner's rate at each of `steps` steps that another trainer takes for it; it counts them."""
    first = learner.step_count

    def rate(step: int) -> float:
        learner.step_count = first + step
        return learner.learning_rate((iteration + step / steps) / learner.settings.iterations)

    return rate


def _off_policy(learner: Learner, samples: Sequence[Sample]) -> tuple[list[Sample], float]:
    """The samples with what the policy says of them before the first step, and how far that is from the sampler.

    Raises `RatioError` beyond `max_mismatch_kl`.
    """
    settings = learner.settings
    budget = learner.microbatch_tokens
    known = with_proximal_logprobs(learner.model, samples, precision=settings.precision, max_tokens=budget)
    distance = mismatch_kl(known)
    if not distance <= settings.max_mismatch_kl:
        raise RatioError(
            f"the sampler is {distance:.2g} nats a token from the policy that is to be trained, more than "
            f"training.max_mismatch_kl {settings.max_mismatch_kl:g}: importance weights cannot make up for that; play "
            "the rollout with this policy"
        )
    return known, distance
