"""KL divergences per token: estimates to the reference policy, and the exact one to a teacher."""

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


def reverse_kl(policy_logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    """KL(policy ‖ teacher) over the whole vocabulary, exact and not estimated from the sampled token.

    Both are normalized log-probabilities, [tokens, vocabulary] → [tokens], Σ_v π(v) (log π(v) − log π_teacher(v)) (GKD,
    arXiv 2306.13649, equation 3). The gradient with respect to the policy's logit of v is
    π(v) (log π(v) − log π_teacher(v) − KL):

        π = (¾, ¼), teacher (½, ½): KL = ¾ ln 1.5 + ¼ ln .5 = .130812, gradient (.205990, −.205990)
    """
    return (policy_logprobs.exp() * (policy_logprobs - teacher_logprobs)).sum(dim=-1)
