"""What a token weighs in the loss of a batch; the weighted sum of the token losses is the loss.

Denominators are those of the whole batch, so that a loss does not depend on how the batch is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Reduction = Literal["sequence_mean", "token_mean", "constant", "sequence_sum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Sizes of the whole batch, parts that teach nothing included."""

    sequences: int
    tokens: int
    normalizer: int
    """Constant length that Dr. GRPO divides by: the most tokens that a policy may say in an episode."""


def token_weights(lengths: torch.Tensor, of: Denominators, *, reduction: Reduction) -> torch.Tensor:
    """Weight of each token; `lengths` [sequences] of the policy's own tokens → [Σ lengths].

    sequence_mean  mean over sequences of means over their tokens (GRPO): lengths 2, 1 → ¼ ¼ ½
    token_mean     mean over all tokens (DAPO): ⅓ ⅓ ⅓
    constant       sum / (sequences · normalizer) (Dr. GRPO): normalizer 4 → ⅛ ⅛ ⅛
    sequence_sum   mean over sequences of sums (REINFORCE): ½ ½ ½
    """
    one = torch.ones(int(lengths.sum()), device=lengths.device)
    if reduction == "sequence_mean":
        return torch.repeat_interleave(1.0 / (lengths * of.sequences), lengths)
    if reduction == "token_mean":
        return one / of.tokens
    if reduction == "constant":
        return one / (of.sequences * of.normalizer)
    return one / of.sequences
