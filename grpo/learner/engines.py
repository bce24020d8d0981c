"""Who takes the steps of an update: this package's learner, TRL's trainer, or TRL's trainer on pairs of siblings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo import progress
from grpo.algorithms.reductions import Denominators
from grpo.errors import RatioError
from grpo.learner.learner import Learner
from grpo.learner.samples import Batch, Sample, deal, spoken
from grpo.learner.scoring import mismatch_kl, with_old_logprobs
from grpo.trajectories import TrajectoryGroup

Metrics = list[dict[str, float]]
"""Of each step its loss, gradient norm, learning rate, and means over the tokens that the policy said."""


def by_learner(learner: Learner, batch: Batch, *, seed: int, iteration: int) -> tuple[Metrics, float]:
    """Go through the rollout once an epoch, in steps of whole groups; with how far the sampler was from the policy."""
    settings = learner.settings
    rng = np.random.default_rng([seed, iteration])
    groups, mismatch = batch.groups, 0.0
    if settings.importance_cap is not None:
        known, mismatch = _off_policy(learner, [sample for members in groups for sample in members])
        corrected = iter(known)
        groups = tuple(tuple(next(corrected) for _ in members) for members in groups)
    epochs = range(settings.epochs)
    hands = [hand for _ in epochs for hand in deal(groups, per_hand=settings.groups_per_step, rng=rng)]
    of = Denominators(
        sequences=max(1, batch.sample_count * settings.epochs // len(hands)),
        tokens=max(1, batch.token_count * settings.epochs // len(hands)),
        normalizer=settings.length_normalizer,
    )
    measured = []
    for index, hand in enumerate(hands):
        exact = index == 0 and settings.importance_cap is None
        progress_of_run = (iteration + index / len(hands)) / settings.iterations
        metrics = learner.step(hand, of, on_policy=exact, progress=progress_of_run)
        measured.append(metrics)
        progress.report("train", index + 1, len(hands), loss=metrics["loss"], entropy=metrics["entropy"])
    return measured, mismatch


def by_trl(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    seed: int,
    iteration: int,
) -> tuple[Metrics, float]:
    """One step an epoch on all groups, by TRL's GRPOTrainer, with the learner's optimizer and learning rate."""
    from grpo.learner import trl_engine  # 2.5 s, which other engines need not pay

    settings = learner.settings
    mismatch = 0.0
    if settings.importance_cap is not None:
        samples = spoken(trajectory for group in groups for trajectory in group.trajectories)
        _, mismatch = _off_policy(learner, samples)
    measured = trl_engine.train(
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


def by_preferences(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    groups: Sequence[TrajectoryGroup],
    *,
    reference: PreTrainedModel,
    seed: int,
    iteration: int,
) -> Metrics:
    """DPO on the best and the worst sibling of each group, by TRL's DPOTrainer, with the learner's optimizer."""
    from grpo.learner.preferences import compare_siblings, train_dpo

    settings = learner.settings
    pairs = compare_siblings(groups).pairs
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
    known = with_old_logprobs(learner.model, samples, precision=settings.precision, max_tokens=budget)
    distance = mismatch_kl(known)
    if not distance <= settings.max_mismatch_kl:
        raise RatioError(
            f"the sampler is {distance:.2g} nats a token from the policy that is to be trained, more than "
            f"training.max_mismatch_kl {settings.max_mismatch_kl:g}: importance weights cannot make up for that; play "
            "the rollout with this policy"
        )
    return known, distance
