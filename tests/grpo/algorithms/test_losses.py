from __future__ import annotations

import math

import pytest
import torch

from grpo.algorithms.kl import k3, kl_loss
from grpo.algorithms.losses import clipped_surrogate, sequence_mean_weights


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 1.0, -1.2, 0.0),  # past the trust region praise stops: −1.2·1, flat
        (0.5, 1.0, -0.5, -0.5),  # d(−r·A)/d logπ = −r·A
        (1.5, -1.0, 1.5, 1.5),  # correction goes on
        (0.5, -1.0, 0.8, 0.0),  # −0.8·(−1), flat
        (1.0, 2.0, -2.0, -2.0),  # on-policy: the REINFORCE gradient
    ],
)
def test_clipping_stops_praise_but_not_correction(ratio: float, advantage: float, loss: float, gradient: float):
    """Past the trust region a good token stops pulling; a bad one still does."""
    policy = torch.tensor([math.log(ratio)], requires_grad=True)
    losses, ratios, active = clipped_surrogate(
        policy, torch.zeros(1), torch.tensor([advantage]), clip_low=0.2, clip_high=0.2
    )
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss)
    assert ratios.item() == pytest.approx(ratio)
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(gradient, abs=1e-6)
    assert bool(active) == (gradient == 0)


def test_clip_bounds_may_differ():
    """clip_high .28: r = 1.5 → −1.28; clip_low .1: r = .5, A = −1 → .9"""
    losses, _, _ = clipped_surrogate(
        torch.log(torch.tensor([1.5, 0.5])), torch.zeros(2), torch.tensor([1.0, -1.0]), clip_low=0.1, clip_high=0.28
    )
    assert losses.tolist() == pytest.approx([-1.28, 0.9])


def test_every_sequence_counts_the_same_however_long():
    """lengths 2 and 1: (a + b)/2 and c, then the mean of both → ¼ ¼ ½"""
    assert sequence_mean_weights(torch.tensor([2, 1])).tolist() == [0.25, 0.25, 0.5]


def test_k3_by_hand():
    """Δ = log π_ref − log π = −.5 → e^−.5 + .5 − 1 = .106531; equal policies → 0"""
    assert k3(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0])).tolist() == pytest.approx([0.1065307, 0.0])


def test_the_kl_loss_has_the_gradient_of_the_divergence_from_the_reference():
    """Summed over a vocabulary of 3 with weights π, the gradient of r·k3 is that of KL(π ‖ π_ref)."""
    logits = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.4, -0.3]), dim=0)
    policy = torch.log_softmax(logits, dim=0)
    sampler = policy.detach()
    (sampler.exp() * kl_loss(policy, sampler, reference)).sum().backward()
    estimated = logits.grad.clone()  # type: ignore[union-attr]
    logits.grad = None
    exact = torch.log_softmax(logits, dim=0)
    (exact.exp() * (exact - reference)).sum().backward()
    assert estimated.tolist() == pytest.approx(logits.grad.tolist(), abs=1e-6)  # type: ignore[union-attr]


def test_the_policy_gradient_equals_the_exact_expectation_on_an_enumerable_toy():
    """Vocabulary 3, length 2: summing over all 9 sequences, the surrogate's gradient is that of E[R]."""
    torch.manual_seed(0)
    first, second = torch.randn(3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    rewards = torch.randn(3, 3)
    p1, p2 = torch.log_softmax(first, 0), torch.log_softmax(second, 1)
    expected_reward = (p1.exp()[:, None] * p2.exp() * rewards).sum()
    exact = torch.autograd.grad(expected_reward, [first, second], retain_graph=True)
    probability = (p1.detach()[:, None] + p2.detach()).exp()
    surrogate = torch.zeros(())
    for a in range(3):
        for b in range(3):
            chosen = torch.stack([p1[a], p2[a, b]])
            losses, _, _ = clipped_surrogate(
                chosen, chosen.detach(), rewards[a, b].repeat(2), clip_low=0.2, clip_high=0.2
            )
            surrogate = surrogate - probability[a, b] * losses.sum()
    estimated = torch.autograd.grad(surrogate, [first, second])
    for left, right in zip(estimated, exact, strict=True):
        assert torch.allclose(left, right, atol=1e-6)
