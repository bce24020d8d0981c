from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from grpo.evaluation.pass_rates import Estimator, pass_at_k, pass_hat_k, pass_rates


@pytest.mark.parametrize(
    ("successes", "k", "at", "hat"),
    [
        (2, 1, 1 / 2, 1 / 2),
        (2, 2, 5 / 6, 1 / 6),  # of the 6 pairs of 4 samples one is both failures, one both successes
        (2, 3, 1, 0),
        (3, 2, 1, 1 / 2),
        (3, 3, 1, 1 / 4),
        (1, 4, 1, 0),
        (0, 1, 0, 0),
        (4, 4, 1, 1),
    ],
)
def test_estimates_are_the_shares_of_the_choices_of_k_samples(successes: int, k: int, at: float, hat: float):
    """Of four samples."""
    assert pass_at_k(4, successes, k) == pytest.approx(at)
    assert pass_hat_k(4, successes, k) == pytest.approx(hat)
    choices = list(combinations([True] * successes + [False] * (4 - successes), k))
    assert pass_at_k(4, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_hat_k(4, successes, k) == pytest.approx(sum(map(all, choices)) / len(choices))


@pytest.mark.parametrize(("estimator", "truth"), [(pass_at_k, 1 - 0.3**2), (pass_hat_k, 0.7**2)])
def test_estimates_are_unbiased(estimator: Estimator, truth: float):
    """Weighted by the binomial chances of c of 3 successes at .7: .027, .189, .441, .343."""
    chances = (0.027, 0.189, 0.441, 0.343)
    assert sum(chance * estimator(3, c, 2) for c, chance in enumerate(chances)) == pytest.approx(truth)


def test_each_scenario_has_an_estimate_at_each_k_that_it_was_tried():
    """One with 1 of 2 and 2 of 2, the other tried once: pass^1 .5 1 and 0 1, pass^2 0 1 of the first alone."""
    tried = [np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 1.0]])]
    first, second = pass_rates(tried, pass_hat_k)
    assert first.tolist() == [[0.5, 1.0], [0.0, 1.0]]
    assert second.tolist() == [[0.0, 1.0]]
    assert pass_rates([], pass_hat_k) == []
