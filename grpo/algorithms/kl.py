"""Per-token estimates of the KL divergence to the reference policy."""

from __future__ import annotations

import torch


def k3(policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Low-variance estimate of KL(policy ‖ reference) per token, never negative: e^Δ − Δ − 1, Δ = log π_ref − log π.

    For logging. Its gradient is that of KL(reference ‖ policy); train on `kl_loss`.
    """
    delta = reference_logprobs - policy_logprobs
    return torch.expm1(delta) - delta


def kl_loss(ratio: torch.Tensor, policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """r·k3 per token, whose gradient is that of KL(policy ‖ reference); r is the importance ratio, not detached."""
    return ratio * k3(policy_logprobs, reference_logprobs)
