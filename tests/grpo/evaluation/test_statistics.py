from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from grpo.evaluation.statistics import (
    SHARE,
    Estimator,
    compare,
    interval,
    pass_at_k,
    pass_hat_k,
    pass_rates,
    upper_bound,
)

FINE = {"confidence": 0.95, "resamples": 20_000, "seed": 0}


@pytest.mark.parametrize(
    ("successes", "low", "high"), [(20, 0.8834, 1.0), (0, 0.0, 0.1166), (15, 0.5358, 0.8976), (10, 0.2928, 0.7072)]
)
def test_the_interval_of_a_proportion_is_jeffreys(successes: int, low: float, high: float):
    """2.5 and 97.5 % of Beta(successes + .5, 20 - successes + .5); at 20 of 20 and at 0 it reaches the share itself."""
    share = interval(np.repeat([1.0, 0.0], [successes, 20 - successes]), ends=SHARE, **FINE)
    assert (share.mean, share.count) == (successes / 20, 20)
    assert (share.low, share.high) == pytest.approx((low, high), abs=0.004)


def test_twenty_equal_scenarios_leave_an_uncertain_difference():
    """Weights of .5 at -1 and +1 among 21: variance 1 / (21 · 22) = .0465², so about ± 2.2 · .0465."""
    difference = interval(np.zeros(20), ends=(-1.0, 1.0), **FINE)
    assert difference.mean == 0
    assert (difference.low, difference.high) == pytest.approx((-0.102, 0.102), abs=0.006)


def test_one_scenario_has_a_wide_interval():
    """2.5 % of Beta(1.5, .5) is .1467."""
    share = interval(np.ones(1), ends=SHARE, **FINE)
    assert (share.low, share.high) == (pytest.approx(0.1467, abs=0.01), 1.0)


def test_several_samples_of_a_scenario_count_as_one():
    """20 scenarios, of which each gave 1 of 2: not more certain than 20 single values of .5 are."""
    means = np.full(20, 0.5)
    # weights of .5 at 0 and 1 among 21: variance .25 / (21 · 22) = .0233²
    share = interval(means, ends=SHARE, **FINE)
    assert share.high - share.low == pytest.approx(2 * 2.2 * 0.0233, abs=0.01)


def test_intervals_of_shares_near_1_cover_the_truth():
    """300 times 20 scenarios of a true .98: two of three samples hold no failure, and a point at 1 would miss it."""
    rng = np.random.default_rng(0)
    covered = 0
    for run in range(300):
        share = interval((rng.random(20) < 0.98).astype(float), ends=SHARE, confidence=0.95, resamples=400, seed=run)
        covered += share.low <= 0.98 <= share.high
    assert covered >= 0.90 * 300


def test_an_interval_has_the_width_of_its_standard_error():
    """Half ones of 400: ± 1.96 · sqrt(.25/400) = ± .049"""
    share = interval(np.repeat([0.0, 1.0], 200), ends=SHARE, confidence=0.95, resamples=4000, seed=0)
    assert share.low == pytest.approx(0.451, abs=0.006)
    assert share.high == pytest.approx(0.549, abs=0.006)


def test_a_lower_confidence_is_a_narrower_interval():
    """± 1.28 instead of ± 1.96 standard errors of .025."""
    share = interval(np.repeat([0.0, 1.0], 200), ends=SHARE, confidence=0.8, resamples=4000, seed=0)
    assert (share.low, share.high) == pytest.approx((0.468, 0.532), abs=0.006)


def test_the_same_seed_gives_the_same_interval():
    """Another seed draws other weights."""
    values = np.repeat([0.0, 1.0], 10)
    first, again, other = (
        interval(values, ends=SHARE, confidence=0.95, resamples=200, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_difference_is_paired():
    """Both vary between scenarios, .26 on either side, and by exactly .1 within each: ± .04, and not ± .10."""
    champion = np.linspace(0, 0.9, 50)
    difference = compare("all", champion, champion + 0.1, ends=SHARE, **FINE).difference
    assert difference.mean == pytest.approx(0.1)
    assert (difference.low, difference.high) == pytest.approx((0.06, 0.14), abs=0.01)


def test_the_difference_is_the_candidates_gain():
    """From 0 of 20 to 20 of 20: +1."""
    result = compare("hard", np.zeros(20), np.ones(20), ends=SHARE, **FINE)
    assert (result.name, result.champion.mean, result.candidate.mean, result.difference.mean) == ("hard", 0, 1, 1)
    assert result.difference.low > 0.7


def test_a_difference_can_be_as_large_as_the_range():
    """Rewards from -1 to 2: no difference in twenty scenarios is three times as wide as for shares, ± .31."""
    nothing = compare("all", np.zeros(20), np.zeros(20), ends=(-1.0, 2.0), **FINE).difference
    assert (nothing.low, nothing.high) == pytest.approx((-0.306, 0.306), abs=0.018)


def test_few_scenarios_that_agree_are_still_uncertain():
    """-1 -1 with +1 -1 counted beside: mean -.5, variance .75, so -.5 + .8416 · sqrt(.75 / 4) = -.1355"""
    highest = upper_bound(np.array([-1.0, -1.0]), confidence=0.8, largest=1.0)
    assert highest == pytest.approx(-0.1355, abs=5e-4)


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
def test_estimates_are_the_share_of_subsets_of_k_samples(successes: int, k: int, at: float, hat: float):
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


def test_a_scenario_has_an_estimate_up_to_its_number_of_samples():
    """One with 1 of 2 and 2 of 2, the other with one sample: pass^1 .5 1 and 0 1, pass^2 0 1 of the first alone."""
    samples = [np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 1.0]])]
    first, second = pass_rates(samples, pass_hat_k)
    assert first.tolist() == [[0.5, 1.0], [0.0, 1.0]]
    assert second.tolist() == [[0.0, 1.0]]
    assert pass_rates([], pass_hat_k) == []
