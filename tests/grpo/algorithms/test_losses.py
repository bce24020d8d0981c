from __future__ import annotations

import math

import pytest
import torch

from grpo.algorithms.kl import k3, kl_loss, reverse_kl
from grpo.algorithms.losses import (
    ClipRange,
    capped_policy_gradient,
    clipped_surrogate,
    high_entropy_mask,
    importance_ratio,
    policy_gradient,
    sequence_mask,
    truncated_importance_weight,
    unclipped_surrogate,
)
from grpo.algorithms.reductions import Denominators, Reduction, token_weights

CLIP = ClipRange(low=0.2, high=0.2)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 1.0, -1.2, 0.0),  # past the clip range a positive advantage has no gradient: −1.2·1, flat
        (0.5, 1.0, -0.5, -0.5),  # d(−r·A)/d logπ = −r·A
        (1.5, -1.0, 1.5, 1.5),  # a negative one keeps it
        (0.5, -1.0, 0.8, 0.0),  # −0.8·(−1), flat
        (1.0, 2.0, -2.0, -2.0),  # on-policy: the REINFORCE gradient
    ],
)
def test_clipping_stops_positive_but_not_negative_advantages(
    ratio: float, advantage: float, loss: float, gradient: float
):
    """Past the clip range a token with a positive advantage has no gradient; one with a negative advantage has."""
    policy = torch.tensor([math.log(ratio)], requires_grad=True)
    losses, active = clipped_surrogate(policy.exp(), policy, torch.tensor([advantage]), CLIP)
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss)
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(gradient, abs=1e-6)
    assert bool(active) == (gradient == 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "active"),
    [
        (1.5, 1.0, False),  # on the bound: the gradient flows
        (1.625, 1.0, True),
        (0.75, -1.0, False),  # on the bound
        (0.625, -1.0, True),
        (1.125, -1.0, False),  # a negative advantage above 1 is not clipped
        (0.5, 0.5, False),  # nor is a positive one below 1
        (9.0, 0.0, False),  # nothing to clip
        (0.5, 0.0, False),
    ],
)
def test_a_clip_is_counted_where_it_stops_the_gradient(ratio: float, advantage: float, active: bool):
    """From .75 to 1.5."""
    _, clipped = clipped_surrogate(
        torch.tensor([ratio]), torch.zeros(1), torch.tensor([advantage]), ClipRange(low=0.25, high=0.5)
    )
    assert clipped.tolist() == [active]


@pytest.mark.parametrize(("ratio", "advantage", "active"), [(4.0, -0.5, True), (3.0, -1.0, False), (4.0, 0.0, False)])
def test_the_dual_clip_is_counted_for_negative_advantages_beyond_it(ratio: float, advantage: float, active: bool):
    """c = 3, and no other bound near."""
    clip_range = ClipRange(low=0.25, high=9.0, dual=3.0)
    _, clipped = clipped_surrogate(
        torch.tensor([ratio, 4.0]), torch.zeros(2), torch.tensor([advantage, 0.5]), clip_range
    )
    assert clipped.tolist() == [active, False]


def test_the_unclipped_surrogate_is_linear_in_the_ratio():
    """−r·A: (1.5, 2) → −3, (9, −.5) → 4.5; nothing is clipped."""
    losses, active = unclipped_surrogate(torch.tensor([1.5, 9.0]), torch.zeros(2), torch.tensor([2.0, -0.5]), CLIP)
    assert losses.tolist() == [-3.0, 4.5]
    assert active.tolist() == [False, False]
    assert active.dtype == torch.bool


def test_clip_bounds_may_differ():
    """clip_high .28: r = 1.5 → −1.28; clip_low .1: r = .5, A = −1 → .9"""
    ratio = torch.tensor([1.5, 0.5])
    losses, _ = clipped_surrogate(ratio, ratio.log(), torch.tensor([1.0, -1.0]), ClipRange(low=0.1, high=0.28))
    assert losses.tolist() == pytest.approx([-1.28, 0.9])


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    """c = 3: (5, −1) → 3 and no gradient; (2, −1) → 2 with its gradient; positive advantages are as before."""
    policy = torch.tensor([5.0, 2.0, 5.0]).log().requires_grad_()
    clip_range = ClipRange(low=0.2, high=0.2, dual=3.0)
    losses, active = clipped_surrogate(policy.exp(), policy, torch.tensor([-1.0, -1.0, 1.0]), clip_range)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([0.0, 2.0, 0.0])
    assert active.tolist() == [True, False, True]


def test_the_capped_policy_gradient_keeps_the_gradient_of_every_token():
    """Cap 2: (r, A) = (3, 1) → weight 2, gradient −2; (.5, −1) → weight .5, gradient .5."""
    policy = torch.tensor([-0.5, -2.0], requires_grad=True)
    losses, active = capped_policy_gradient(
        torch.tensor([3.0, 0.5]), policy, torch.tensor([1.0, -1.0]), ClipRange(low=0.2, high=2.0)
    )
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([1.0, -1.0])  # −2·1·(−.5), −.5·(−1)·(−2)
    assert policy.grad is not None
    assert policy.grad.tolist() == pytest.approx([-2.0, 0.5])
    assert active.tolist() == [True, False]


@pytest.mark.parametrize(
    ("ratio", "advantage", "active"), [(3.0, 0.5, True), (3.0, -0.5, False), (3.0, 0.0, False), (2.0, 0.5, False)]
)
def test_the_cap_is_counted_for_positive_advantages_beyond_it(ratio: float, advantage: float, active: bool):
    """Cap 2, log π −1: the loss is min(r, 2)·A, and the cap itself is not beyond it."""
    losses, counted = capped_policy_gradient(
        torch.tensor([ratio]), -torch.ones(1), torch.tensor([advantage]), ClipRange(low=0.2, high=2.0)
    )
    assert losses.item() == 2.0 * advantage
    assert counted.tolist() == [active]


def test_plain_policy_gradient_ignores_the_ratio():
    """−A·log π, whatever the ratio."""
    losses, active = policy_gradient(torch.tensor([9.0]), torch.tensor([-0.5]), torch.tensor([2.0]), CLIP)
    assert losses.item() == 1.0
    assert active.tolist() == [False]
    assert active.dtype == torch.bool


def test_one_ratio_a_token_or_one_a_sequence():
    """Δ = [.1 −.1 .3] and [.2]: tokens e^.1 …; sequences exp(.1) = 1.105171 thrice, e^.2 once."""
    delta, lengths = torch.tensor([0.1, -0.1, 0.3, 0.2]), torch.tensor([3, 1])
    by_token = importance_ratio(delta, lengths, by_sequence=False)
    assert by_token.tolist() == pytest.approx([1.105171, 0.904837, 1.349859, 1.221403], abs=1e-6)
    by_sequence = importance_ratio(delta, lengths, by_sequence=True)
    assert by_sequence.tolist() == pytest.approx([1.105171] * 3 + [1.221403], abs=1e-6)
    exact = importance_ratio(delta.double(), lengths, by_sequence=True)
    assert exact.dtype == torch.float64


def test_a_truncated_weight_stops_at_its_cap():
    """π_proximal/π_sampler = .25/.5 and .8/.2, cap 2 → .5 and 2"""
    weight = truncated_importance_weight(torch.tensor([0.25, 0.8]).log(), torch.tensor([0.5, 0.2]).log(), cap=2.0)
    assert weight.tolist() == pytest.approx([0.5, 2.0])


def test_a_sequence_is_masked_by_the_geometric_mean_of_its_ratios():
    """Differences [.1 −.1 .3] and [−.1 −.1]: means exp(.1) = 1.105 and exp(−.1) = .905 = 1 / 1.105."""
    proximal, lengths = torch.tensor([0.1, -0.1, 0.3, -0.1, -0.1]), torch.tensor([3, 2])
    kept = [sequence_mask(proximal, torch.zeros(5), lengths, bound=bound).tolist() for bound in (1.2, 1.1)]
    assert kept == [[True] * 5, [False] * 5]
    one_side = torch.tensor([0.1, -0.1, 0.3, 0.0, 0.0])
    assert sequence_mask(one_side, torch.zeros(5), lengths, bound=1.1).tolist() == [False] * 3 + [True] * 2


def test_a_sequence_exactly_at_the_bound_is_kept():
    """Ratios 2 and ½ at bound 2."""
    proximal = torch.tensor([2.0, 0.5], dtype=torch.float64).log()
    kept = sequence_mask(proximal, torch.zeros(2, dtype=torch.float64), torch.tensor([1, 1]), bound=2.0)
    assert kept.tolist() == [True, True]


def test_the_most_uncertain_tokens_are_kept():
    """40 % of five: the two highest."""
    mask = high_entropy_mask(torch.tensor([0.1, 0.9, 0.3, 0.7, 0.2]), share=0.4)
    assert mask.tolist() == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("share", "kept"), [(0.05, [0, 1, 0, 0, 0]), (0.6, [0, 1, 1, 1, 0]), (1.0, [1, 1, 1, 1, 1])], ids=str
)
def test_at_least_one_token_is_kept(share: float, kept: list[int]):
    """A quarter of a token is one; three of five are the three highest."""
    mask = high_entropy_mask(torch.tensor([0.1, 0.9, 0.3, 0.7, 0.2]), share=share)
    assert mask.tolist() == [bool(each) for each in kept]


@pytest.mark.parametrize(
    ("reduction", "weights"),
    [
        ("sequence_mean", [0.25, 0.25, 0.5]),
        ("token_mean", [1 / 3, 1 / 3, 1 / 3]),
        ("constant", [0.125, 0.125, 0.125]),  # 1 / (2 sequences · 4)
        ("sequence_sum", [0.5, 0.5, 0.5]),
    ],
)
def test_token_weights_of_each_reduction(reduction: Reduction, weights: list[float]):
    """Lengths 2 and 1, normalizer 4."""
    denominators = Denominators(sequences=2, tokens=3, normalizer=4)
    assert token_weights(torch.tensor([2, 1]), denominators, reduction=reduction).tolist() == pytest.approx(weights)


def test_k3_by_hand():
    """Δ = log π_ref − log π = −.5 → e^−.5 + .5 − 1 = .106531; equal policies → 0"""
    assert k3(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0])).tolist() == pytest.approx([0.1065307, 0.0])


def test_the_kl_loss_has_the_gradient_of_the_divergence_from_the_reference():
    """Summed over a vocabulary of 3 with weights π, the gradient of r·k3 is that of KL(π ‖ π_ref)."""
    logits = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.4, -0.3]), dim=0)
    policy = torch.log_softmax(logits, dim=0)
    sampler = policy.detach()
    (sampler.exp() * kl_loss((policy - sampler).exp(), policy, reference)).sum().backward()
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
            ratio = (chosen - chosen.detach()).exp()
            losses, _ = clipped_surrogate(ratio, chosen, rewards[a, b].repeat(2), CLIP)
            surrogate = surrogate - probability[a, b] * losses.sum()
    estimated = torch.autograd.grad(surrogate, [first, second])
    for left, right in zip(estimated, exact, strict=True):
        assert torch.allclose(left, right, atol=1e-6)


def test_the_exact_kl_to_a_teacher_is_a_sum_over_the_vocabulary_of_each_token():
    """π = (¾, ¼) and teacher (½, ½): ¾ ln 1.5 + ¼ ln .5 = .130812. The second token has equal distributions."""
    policy = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64).log().requires_grad_()
    teacher = torch.full((2, 2), 0.5, dtype=torch.float64).log()
    kl = reverse_kl(policy, teacher)
    assert kl.tolist() == pytest.approx([0.130812, 0.0], abs=1e-6)
