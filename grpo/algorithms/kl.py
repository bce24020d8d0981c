"""Per-token estimates of the KL divergence to the reference policy."""

from __future__ import annotations

import torch


def k3(policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Low-variance estimate of KL(policy ‖ reference) per token, never negative: e^Δ − Δ − 1, Δ = log π_ref − log π.

    Use it only for logging. Its gradient is the gradient of KL(reference ‖ policy), so train on `kl_loss`.
    """
    delta = reference_logprobs - policy_logprobs
    return torch.expm1(delta) - delta


def kl_loss(ratio: torch.Tensor, policy_logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """r·k3 per token. Its gradient is the gradient of KL(policy ‖ reference), because r is not detached."""
    return ratio * k3(policy_logprobs, reference_logprobs)
