"""What tells one algorithm from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpo.algorithms.advantages import Baseline
from grpo.algorithms.losses import Bounds
from grpo.algorithms.reductions import Reduction

Objective = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, Bounds],  # ratio, logprobs, advantages [tokens]
    tuple[torch.Tensor, torch.Tensor],  # loss, where the clip was active [tokens]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """How siblings are compared, what a token costs, and what it weighs."""

    name: str
    objective: Objective
    reduction: Reduction
    baseline: Baseline = "group_mean"
    scale_by_std: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_by_sequence: bool = False
