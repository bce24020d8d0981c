"""Loss aggregation: the weight of each token in the loss of a batch.

Denominators are sizes of the whole batch, so that the loss does not depend on the split into microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Reduction = Literal["sequence_mean", "token_mean", "constant", "sequence_sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Sizes of the whole batch, uninformative groups included. With several steps, the mean size of a step."""

    sequences: float
    tokens: float
    normalizer: int
    """Constant length that Dr. GRPO divides by: the maximum number of completion tokens of an episode."""


def token_weights(lengths: torch.Tensor, denominators: Denominators, *, reduction: Reduction) -> torch.Tensor:
    """Weight of each token, from `lengths` [sequences] in completion tokens → [Σ lengths].

    sequence_mean  mean over sequences of means over their tokens (GRPO): lengths 2, 1 → ¼ ¼ ½
    token_mean     mean over all tokens (DAPO): ⅓ ⅓ ⅓
    constant       sum / (sequences · normalizer) (Dr. GRPO): normalizer 4 → ⅛ ⅛ ⅛
    sequence_sum   mean over sequences of sums (REINFORCE): ½ ½ ½
    """
    ones = torch.ones(int(lengths.sum()), device=lengths.device)
    if reduction == "sequence_mean":
        return torch.repeat_interleave(1.0 / (lengths * denominators.sequences), lengths)
    if reduction == "token_mean":
        return ones / denominators.tokens
    if reduction == "constant":
        return ones / (denominators.sequences * denominators.normalizer)
    return ones / denominators.sequences
