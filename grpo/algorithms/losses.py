"""Losses of tokens. Arrays in, arrays out: the caller reduces."""

from __future__ import annotations

import torch


def clipped_surrogate(
    policy_logprobs: torch.Tensor,  # [tokens]
    sampler_logprobs: torch.Tensor,  # [tokens]
    advantages: torch.Tensor,  # [tokens]
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7): −min(r·A, clip(r, 1−ε_low, 1+ε_high)·A).

        (r, A) = (1.5, 1) → −1.2, gradient 0      (.5, 1) → −.5, flows
                 (1.5, −1) → 1.5, flows           (.5, −1) → .8, gradient 0       ε = .2

    Returns loss, importance ratio r = exp(policy − sampler), and where the clip was active, each [tokens].
    """
    ratio = torch.exp(policy_logprobs - sampler_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    active = ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))
    return loss, ratio, active


def sequence_mean_weights(lengths: torch.Tensor) -> torch.Tensor:
    """Weight of each token so that the weighted sum is GRPO's mean over sequences of means over their tokens.

    `lengths` [sequences] of the policy's own tokens → weights [Σ lengths], in order of the sequences:
    lengths 2, 1 → [1/4, 1/4, 1/2].
    """
    return torch.repeat_interleave(1.0 / (lengths * lengths.numel()), lengths)
