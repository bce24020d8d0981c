"""Gradients against finite differences, and against an expectation that can be written out."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from grpo.algorithms.advantages import group_advantages, maximum_likelihood_advantages
from grpo.algorithms.catalog import ALGORITHMS
from grpo.algorithms.kl import kl_loss
from grpo.algorithms.losses import (
    ClipRange,
    capped_policy_gradient,
    clipped_surrogate,
    policy_gradient,
    unclipped_surrogate,
)
from grpo.algorithms.reductions import Denominators, token_weights
from grpo.algorithms.value import value_loss

CLIP = ClipRange(low=0.2, high=0.28, dual=3.0)
PREVIOUS = torch.tensor([-1.0, -0.3, -2.0, -0.7, -1.5, -0.2], dtype=torch.float64)
LOG_RATIO = torch.tensor([0.1, -0.1, 0.6, -0.5, 1.3, -0.05], dtype=torch.float64)  # inside, outside, past the dual clip
ADVANTAGES = torch.tensor([1.0, -2.0, 0.5, 1.5, -1.0, 0.3], dtype=torch.float64)


def _slopes(loss: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the summed loss in the log-probabilities, by autograd and by central differences."""
    logprobs = (PREVIOUS + LOG_RATIO).requires_grad_()
    loss(logprobs).sum().backward()
    assert logprobs.grad is not None
    start, step = (PREVIOUS + LOG_RATIO), 1e-6
    around = torch.stack(
        [
            (loss(start + step * unit).sum() - loss(start - step * unit).sum()) / (2 * step)
            for unit in torch.eye(6).double()
        ]
    )
    return logprobs.grad, around


@pytest.mark.parametrize("objective", [unclipped_surrogate, clipped_surrogate])
def test_surrogate_gradients_match_finite_differences(objective: Callable[..., tuple[torch.Tensor, torch.Tensor]]):
    """Inside the clip, outside it, and past the dual clip."""
    exact, measured = _slopes(lambda logprobs: objective((logprobs - PREVIOUS).exp(), logprobs, ADVANTAGES, CLIP)[0])
    assert torch.allclose(exact, measured, atol=1e-6)
    assert exact.abs().max() > 0.1


@pytest.mark.parametrize("objective", [capped_policy_gradient, policy_gradient])
def test_policy_gradients_treat_the_ratio_as_a_constant(
    objective: Callable[..., tuple[torch.Tensor, torch.Tensor]],
):
    """The ratio is a weight without a gradient."""
    ratio = LOG_RATIO.exp()
    exact, _ = _slopes(lambda logprobs: objective((logprobs - PREVIOUS).exp(), logprobs, ADVANTAGES, CLIP)[0])
    _, measured = _slopes(lambda logprobs: objective(ratio, logprobs, ADVANTAGES, CLIP)[0])
    assert torch.allclose(exact, measured, atol=1e-6)


def test_the_kl_loss_gradient_matches_finite_differences():
    """r·k3, with the gradient of the ratio."""
    reference = PREVIOUS - 0.4
    exact, measured = _slopes(lambda logprobs: kl_loss((logprobs - PREVIOUS).exp(), logprobs, reference))
    assert torch.allclose(exact, measured, atol=1e-6)


def test_the_value_loss_gradient_matches_finite_differences():
    """Values in the place of log-probabilities; the clip holds some of them."""
    exact, measured = _slopes(lambda values: value_loss(values, PREVIOUS, ADVANTAGES, clip=0.2))
    assert torch.allclose(exact, measured, atol=1e-6)


@pytest.mark.parametrize("baseline", ["leave_one_out", "none"])
def test_on_average_the_estimate_is_the_exact_policy_gradient(baseline: str):
    """Vocabulary 3, length 2, all nine texts, all 81 pairs of samples, each weighted by its probability.

    J(θ) = Σ π(a) π(b | a) R(a, b) can be written out, and so can the expectation of the estimate over the
    pairs; with the other sample as baseline it is unbiased.
    """
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(3, generator=generator).double(), torch.randn(3, 3, generator=generator).double()
    rewards = torch.rand(3, 3, generator=generator).double()
    theta = torch.cat([first, second.flatten()]).requires_grad_()

    def logprobs(text: tuple[int, int]) -> torch.Tensor:
        head, tail = text
        opening = torch.log_softmax(theta[:3], dim=0)[head]
        return torch.stack([opening, torch.log_softmax(theta[3:].view(3, 3)[head], dim=0)[tail]])

    texts = list(itertools.product(range(3), range(3)))
    value = sum((logprobs(text).sum().exp() * rewards[text] for text in texts), torch.zeros(()).double())
    (exact,) = torch.autograd.grad(value, theta)

    expected = torch.zeros_like(theta)
    denominators = Denominators(sequences=2, tokens=4, normalizer=1)
    weights = token_weights(torch.tensor([2, 2]), denominators, reduction="sequence_sum")
    for pair in itertools.product(texts, texts):
        given = np.array([float(rewards[text]) for text in pair])
        advantages = (
            given if baseline == "none" else group_advantages(given, baseline="leave_one_out", scale_by_std=False)
        )
        sampled = torch.cat([logprobs(text) for text in pair])
        per_token = torch.from_numpy(np.repeat(advantages, 2))
        losses, _ = policy_gradient(torch.ones_like(sampled), sampled, per_token, CLIP)
        (estimate,) = torch.autograd.grad((weights * losses).sum(), theta)
        expected += sampled.sum().exp().detach() * estimate
    assert torch.allclose(-expected, exact, atol=1e-9)
    assert exact.abs().max() > 1e-2


@pytest.mark.parametrize("size", [2, 3, 6])
def test_on_average_the_maximum_likelihood_estimate_is_its_truncated_objective(size: int):
    """A policy that succeeds with probability p = σ(θ), all 2^G groups, each weighted by its probability.

    ∇log π is 1 − p for a success and −p for a failure, and ∇p = p (1 − p). MaxRL's objective of order T is
    −Σ_{k=1}^{T} (1 − p)^k / k, so that its gradient is Σ_{k=0}^{T−1} (1 − p)^k ∇p, here with T = G − 1.
    At p = .2 and G = 3: (1 + .8) · .16 = .288.
    """
    success = 0.2
    expected = 0.0
    for outcomes in itertools.product([0.0, 1.0], repeat=size):
        group = np.array(outcomes)
        scores = np.where(group == 1, 1 - success, -success)
        probability = float(np.prod(np.where(group == 1, success, 1 - success)))
        expected += probability * float((maximum_likelihood_advantages(group) * scores).mean())
    weights = sum((1 - success) ** k for k in range(size - 1))
    assert expected == pytest.approx(weights * success * (1 - success), abs=1e-12)
    if size == 3:
        assert expected == pytest.approx(0.288)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_on_average_the_maximum_likelihood_loss_has_the_gradient_of_its_truncated_objective(size: int):
    """A policy with four answers, two of which are right, all 4^G groups, and the loss and reduction of `maxrl`.

    The objective −Σ_{k=1}^{G−1} (1 − p)^k / k is differentiated by autograd, and not written out.
    """
    algorithm = ALGORITHMS["maxrl"]
    theta = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    rewards = np.array([1.0, 0.0, 0.0, 1.0])
    failure = 1 - torch.softmax(theta, dim=0)[[0, 3]].sum()
    objective = -sum((failure**k / k for k in range(1, size)), torch.zeros(()).double())
    (exact,) = torch.autograd.grad(objective, theta)

    expected = torch.zeros_like(theta)
    denominators = Denominators(sequences=size, tokens=size, normalizer=1)
    weights = token_weights(torch.ones(size, dtype=torch.long), denominators, reduction=algorithm.reduction)
    for answers in itertools.product(range(4), repeat=size):
        sampled = torch.log_softmax(theta, dim=0)[list(answers)]
        advantages = torch.from_numpy(maximum_likelihood_advantages(rewards[list(answers)]))
        ratio = (sampled - sampled.detach()).exp()
        losses, _ = algorithm.objective(ratio, sampled, advantages, CLIP)
        (estimate,) = torch.autograd.grad((weights * losses).sum(), theta)
        expected += sampled.sum().exp().detach() * estimate
    assert torch.allclose(-expected, exact, atol=1e-12)
    assert exact.abs().max() > 1e-2


def test_the_expected_maximum_likelihood_gradient_approaches_that_of_the_log_probability():
    """∇log p = 1 − p = .5 at p = ½; in groups of 12 the rest of the series is 2 · ½^11 · .25."""
    size, expected = 12, 0.0
    for outcomes in itertools.product([0.0, 1.0], repeat=size):
        group = np.array(outcomes)
        expected += 0.5**size * float((maximum_likelihood_advantages(group) * (group - 0.5)).mean())
    assert expected == pytest.approx(0.5 - 2 * 0.5**11 * 0.25, abs=1e-12)
