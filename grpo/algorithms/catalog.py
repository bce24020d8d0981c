"""The algorithms by name: loss, aggregation, baseline and clip range of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from grpo.algorithms.advantages import Baseline
from grpo.algorithms.losses import (
    ClipRange,
    capped_policy_gradient,
    clipped_surrogate,
    policy_gradient,
    unclipped_surrogate,
)
from grpo.algorithms.reductions import Reduction

Objective = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, ClipRange],  # ratio, logprobs, advantages [tokens]
    tuple[torch.Tensor, torch.Tensor],  # loss, True if the clip was active [tokens]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Advantage baseline, per-token loss and loss aggregation of an algorithm."""

    name: str
    objective: Objective = unclipped_surrogate
    reduction: Reduction = "sequence_mean"
    update: Literal["gradient", "trust_region", "preferences"] = "gradient"
    """AdamW on the loss, a natural-gradient step under a KL bound, or DPO on pairs of each group."""
    critic: bool = False
    """Advantages from a learned value function instead of a group baseline."""
    baseline: Baseline = "group_mean"
    scale_by_std: bool = False
    maximum_likelihood: bool = False
    """Advantages divided by the mean reward of the group, see `maximum_likelihood_advantages`."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_by_sequence: bool = False


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        # arXiv 2402.03300: group mean and standard deviation, every sequence has the same weight
        Algorithm(name="grpo", objective=clipped_surrogate, scale_by_std=True),
        # 2503.20783: no division by the deviation or a sequence's length, because these favour easy and long sequences
        Algorithm(name="dr_grpo", objective=clipped_surrogate, reduction="constant"),
        # 2503.14476: every token has the same weight, and the upper clip is higher
        Algorithm(name="dapo", objective=clipped_surrogate, reduction="token_mean", scale_by_std=True, clip_high=0.28),
        # 2507.18071: one importance ratio per sequence, in a narrow clip range
        Algorithm(
            name="gspo",
            objective=clipped_surrogate,
            scale_by_std=True,
            clip_low=3e-4,
            clip_high=4e-4,
            ratio_by_sequence=True,
        ),
        # 2506.13585: the importance weight is capped, and every token keeps its gradient
        Algorithm(
            name="cispo", objective=capped_policy_gradient, reduction="token_mean", scale_by_std=True, clip_high=5.0
        ),
        # 2602.02710: the group's mean reward as baseline and as divisor, with the loss of its authors' code
        Algorithm(name="maxrl", objective=clipped_surrogate, reduction="token_mean", maximum_likelihood=True),
        # 2402.14740: REINFORCE with the mean of the group's other samples as baseline
        Algorithm(name="rloo", objective=policy_gradient, reduction="sequence_sum", baseline="leave_one_out"),
        # Williams 1992, with the mean of the batch as baseline
        Algorithm(name="reinforce", objective=policy_gradient, reduction="sequence_sum", baseline="global_mean"),
        # 1707.06347: the clipped surrogate, with a critic
        Algorithm(name="ppo", objective=clipped_surrogate, reduction="token_mean", scale_by_std=True, critic=True),
        # 1602.01783: the policy gradient, with a critic
        Algorithm(name="a2c", objective=policy_gradient, reduction="token_mean", scale_by_std=True, critic=True),
        # 1502.05477: the natural gradient of the surrogate under a bound on the KL divergence
        Algorithm(name="trpo", scale_by_std=True, update="trust_region"),
        # 2305.18290: the best of a group is preferred to its worst, relative to the reference policy
        Algorithm(name="dpo", update="preferences"),
    )
}


def make_algorithm(
    name: str,
    *,
    baseline: Baseline | None = None,
    scale_by_std: bool | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> Algorithm:
    """Make an algorithm by its name. Arguments other than None replace its own values."""
    own = ALGORITHMS[name]
    return replace(
        own,
        baseline=own.baseline if baseline is None else baseline,
        scale_by_std=own.scale_by_std if scale_by_std is None else scale_by_std,
        clip_low=own.clip_low if clip_low is None else clip_low,
        clip_high=own.clip_high if clip_high is None else clip_high,
    )
