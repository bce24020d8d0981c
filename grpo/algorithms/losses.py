"""Per-token policy losses. Functions take and return tensors [tokens], and the caller reduces them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRange:
    """Bounds of the importance ratio."""

    low: float
    """The surrogate clips the ratio from below at 1 − low."""
    high: float
    """The surrogate clips the ratio from above at 1 + high. For the capped policy gradient it is the cap itself."""
    dual: float | None = None
    """Upper bound of the ratio if the advantage is negative (dual clip, arXiv 1912.09729, TRL's delta)."""


def unclipped_surrogate(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip_range: ClipRange
) -> tuple[torch.Tensor, torch.Tensor]:
    """The surrogate without a clip, −r·A (TRPO, arXiv 1502.05477, equation 14): (r, A) = (1.5, 1) → −1.5."""
    return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)


def clipped_surrogate(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip_range: ClipRange
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7): −min(r·A, clip(r, 1−ε_low, 1+ε_high)·A).

        (r, A) = (1.5, 1) → −1.2, gradient 0      (.5, 1) → −.5, flows
                 (1.5, −1) → 1.5, flows           (.5, −1) → .8, gradient 0       ε = .2
        dual 3:  (5, −1) → 3, gradient 0

    All tensors are [tokens]. Returns the loss, and True for each token with an active clip.
    """
    clipped = ratio.clamp(1 - clip_range.low, 1 + clip_range.high)
    bounded = ratio if clip_range.dual is None else ratio.clamp(max=clip_range.dual)
    loss = -torch.minimum(bounded * advantages, clipped * advantages)
    active = ((ratio > 1 + clip_range.high) & (advantages > 0)) | ((ratio < 1 - clip_range.low) & (advantages < 0))
    if clip_range.dual is not None:
        active |= (ratio > clip_range.dual) & (advantages < 0)
    return loss, active


def capped_policy_gradient(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip_range: ClipRange
) -> tuple[torch.Tensor, torch.Tensor]:
    """CISPO (arXiv 2506.13585, equation 4): −sg(min(r, ε_high))·A·log π. Every token keeps a gradient.

    ε_high = 2: (r, A) = (3, 1) at log π = −.5 → 1, gradient −2.
    """
    active = (ratio > clip_range.high) & (advantages > 0)
    return -ratio.clamp(max=clip_range.high).detach() * advantages * logprobs, active


def policy_gradient(
    ratio: torch.Tensor, logprobs: torch.Tensor, advantages: torch.Tensor, clip_range: ClipRange
) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE (Williams 1992): −A·log π. It is unbiased only for the first step on a rollout."""
    return -advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool)


def importance_ratio(log_ratio: torch.Tensor, lengths: torch.Tensor, *, by_sequence: bool) -> torch.Tensor:
    """Ratio r = exp(log π − log π_proximal) of each token, or the geometric mean over each token's sequence.

    `log_ratio` [Σ lengths], `lengths` [sequences]. By sequence (GSPO, arXiv 2507.18071, equation 7):
    Δ = [.1 −.1 .3] → exp(.1) = 1.105171 for all three.
    """
    if not by_sequence:
        return log_ratio.exp()
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    sums = torch.zeros(len(lengths), dtype=log_ratio.dtype, device=log_ratio.device).index_add(0, owner, log_ratio)
    return (sums / lengths).exp().index_select(0, owner)


def truncated_importance_weight(
    proximal_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Truncated importance weight of each token, min(π_proximal / π_sampler, cap) (arXiv 2508.10751).

    It corrects for a sampler that is not the proximal policy. The proximal policy is the one that the update starts
    from.
    """
    return (proximal_logprobs - sampler_logprobs).exp().clamp(max=cap)


def sequence_mask(
    proximal_logprobs: torch.Tensor, sampler_logprobs: torch.Tensor, lengths: torch.Tensor, *, bound: float
) -> torch.Tensor:
    """True for tokens of sequences with a geometric mean of π_proximal / π_sampler within [1/bound, bound].

    Δ = [.1 −.1 .3] → exp(.1) = 1.105: a bound of 1.2 keeps it, and a bound of 1.1 excludes it. `lengths` [sequences].
    """
    ratio = importance_ratio(proximal_logprobs - sampler_logprobs, lengths, by_sequence=True)
    return (ratio <= bound) & (ratio >= 1 / bound)


def high_entropy_mask(entropy: torch.Tensor, *, share: float) -> torch.Tensor:
    """The `share` of the tokens with the highest entropy (arXiv 2506.01939), at least one. Ties are kept."""
    count = max(1, round(share * entropy.numel()))
    return entropy >= entropy.topk(count).values[-1]
