from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from grpo.config.training import TrainingSettings, TrustRegionSettings
from grpo.learner.logprobs import log_distributions
from grpo.learner.trust_region import TrustRegionLearner, conjugate_gradient
from grpo.policy.transformers.model import TransformersPolicy, load
from tests.grpo.learner.test_learner import make_samples, whole


def _learner(policy: TransformersPolicy, **bounds: float) -> TrustRegionLearner:
    settings = TrainingSettings(algorithm="trpo", trust_region=TrustRegionSettings(**bounds))  # type: ignore[arg-type]
    return TrustRegionLearner(policy.model, settings)


def test_conjugate_gradients_solve_a_system_in_as_many_steps_as_it_has_rows():
    """A = [[4 1] [1 3]], target [1 2] → [1/11 7/11]; one step is an approximation."""
    matrix, target = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    exact = torch.tensor([1 / 11, 7 / 11])
    assert torch.allclose(conjugate_gradient(matrix.mv, target, steps=2), exact, atol=1e-6)
    assert not torch.allclose(conjugate_gradient(matrix.mv, target, steps=1), exact, atol=1e-2)


def test_the_fisher_product_is_the_derivative_of_the_kl_gradient(policy: TransformersPolicy):
    """F v against (∇KL(θ + εv) − ∇KL(θ)) / ε, in float64."""
    policy.model.double()
    samples = make_samples(policy)
    learner = _learner(policy)
    with torch.no_grad():
        old = [log_distributions(policy.model, samples)]
    (before, counts), tokens = old[0], int(old[0][1].sum())
    generator = torch.Generator().manual_seed(0)
    vector = torch.cat([torch.randn(p.numel(), generator=generator, dtype=torch.float64) for p in learner.parameters])
    product = learner._fisher_product([samples], old, vector, tokens=tokens)

    def slope() -> torch.Tensor:
        now, _ = log_distributions(policy.model, samples)
        kl = (counts[:, None] * before.exp() * (before - now)).sum() / tokens
        return torch.cat([part.flatten() for part in torch.autograd.grad(kl, learner.parameters)])

    start, step = slope(), 1e-3  # log_distributions rounds logits to float32
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(learner.parameters) + step * vector, learner.parameters
    )
    difference = (slope() - start) / step
    assert torch.nn.functional.cosine_similarity(product, difference, dim=0) > 0.99
    assert float(product.norm()) == pytest.approx(float(difference.norm()), rel=0.1)


def test_a_step_stays_within_the_bound_and_lowers_the_loss(policy: TransformersPolicy):
    """KL(old ‖ new), measured here over the whole vocabulary, is at most δ and not far below it."""
    samples = make_samples(policy)
    learner = _learner(policy, max_kl=0.02)
    with torch.no_grad():
        old, counts = log_distributions(policy.model, samples)
        before = float(learner.loss(samples, whole(samples))[0])
    metrics = learner.step(samples, whole(samples), on_policy=True)
    with torch.no_grad():
        now, _ = log_distributions(policy.model, samples)
        after = float(learner.loss(samples, whole(samples))[0])
    kl = float((counts * (old.exp() * (old - now)).sum(dim=1)).sum() / counts.sum())
    assert metrics["step_kl"] == pytest.approx(kl, rel=1e-3)
    assert 0.002 < kl <= 0.02
    assert after < before


def test_each_of_several_steps_stays_within_the_bound(policy: TransformersPolicy):
    """The bound is on a step, from wherever it starts."""
    learner = _learner(policy, max_kl=0.005)
    for _ in range(4):
        samples = make_samples(policy)
        assert learner.step(samples, whole(samples), on_policy=True)["step_kl"] <= 0.005


def test_without_an_accepted_step_the_policy_is_unchanged(policy: TransformersPolicy, caplog: pytest.LogCaptureFixture):
    """With advantage 0 no direction lowers the loss. The log names the bound."""
    samples = [replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in make_samples(policy)]
    before = copy.deepcopy(policy.model.state_dict())
    metrics = _learner(policy).step(samples, whole(samples), on_policy=True)
    assert metrics["learning_rate"] == 0
    assert "no step within KL 0.01 lowers the loss. The policy is unchanged" in caplog.text
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())


@pytest.mark.parametrize(
    "knob",
    [{"max_kl": 0.001}, {"damping": 5.0}, {"conjugate_gradient_steps": 1}, {"max_kl": 50.0, "line_search_steps": 1}],
    ids=str,
)
def test_every_setting_of_the_trust_region_changes_the_step(tiny_folder: Path, knob: dict[str, float]):
    """Other bounds, other weights."""

    def stepped(**bounds: float) -> torch.Tensor:
        policy = load(tiny_folder)
        samples = make_samples(policy)
        _learner(policy, **bounds).step(samples, whole(samples), on_policy=True)
        return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])

    reference = {"max_kl": 50.0} if "line_search_steps" in knob else {}
    assert not torch.allclose(stepped(**reference), stepped(**knob), atol=1e-6)
