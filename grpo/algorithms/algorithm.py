"""What tells one algorithm from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from grpo.algorithms.advantages import Baseline
from grpo.algorithms.losses import ClipRange, unclipped_surrogate
from grpo.algorithms.reductions import Reduction

Objective = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, ClipRange],  # ratio, logprobs, advantages [tokens]
    tuple[torch.Tensor, torch.Tensor],  # loss, where the clip was active [tokens]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """How siblings are compared, what a token costs, and what it weighs."""

    name: str
    objective: Objective = unclipped_surrogate
    reduction: Reduction = "sequence_mean"
    update: Literal["gradient", "trust_region", "preferences"] = "gradient"
    """AdamW on the loss, a natural step within a bound on the KL divergence, or pairs of siblings."""
    critic: bool = False
    """Compared with what a learned critic expects, instead of with siblings."""
    baseline: Baseline = "group_mean"
    scale_by_std: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_by_sequence: bool = False
