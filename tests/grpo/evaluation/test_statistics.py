from __future__ import annotations

import numpy as np
import pytest

from grpo.evaluation.statistics import SHARE, compare, interval, upper_bound

FINE = {"confidence": 0.95, "resamples": 20_000, "seed": 0}


@pytest.mark.parametrize(
    ("successes", "low", "high"), [(20, 0.8834, 1.0), (0, 0.0, 0.1166), (15, 0.5358, 0.8976), (10, 0.2928, 0.7072)]
)
def test_the_interval_of_a_proportion_is_jeffreys(successes: int, low: float, high: float):
    """2.5 and 97.5 % of Beta(successes + .5, 20 - successes + .5); at 20 of 20 and at 0 it reaches the share itself."""
    share = interval(np.repeat([1.0, 0.0], [successes, 20 - successes]), ends=SHARE, **FINE)
    assert (share.mean, share.count) == (successes / 20, 20)
    assert (share.low, share.high) == pytest.approx((low, high), abs=0.004)


def test_no_difference_in_twenty_scenarios_is_not_certain():
    """Weights of .5 at -1 and +1 among 21: variance 1 / (21 · 22) = .0465², so about ± 2.2 · .0465."""
    difference = interval(np.zeros(20), ends=(-1.0, 1.0), **FINE)
    assert difference.mean == 0
    assert (difference.low, difference.high) == pytest.approx((-0.102, 0.102), abs=0.006)


def test_one_scenario_shows_next_to_nothing():
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
    """From none of 20 to all: +1, and the sides are not mixed up."""
    found = compare("hard", np.zeros(20), np.ones(20), ends=SHARE, **FINE)
    assert (found.name, found.champion.mean, found.candidate.mean, found.difference.mean) == ("hard", 0, 1, 1)
    assert found.difference.low > 0.7


def test_a_difference_can_be_as_large_as_the_range():
    """Rewards from -1 to 2: no difference in twenty scenarios is three times as unsure as of shares, ± .31."""
    nothing = compare("all", np.zeros(20), np.zeros(20), ends=(-1.0, 2.0), **FINE).difference
    assert (nothing.low, nothing.high) == pytest.approx((-0.306, 0.306), abs=0.018)


def test_few_scenarios_that_agree_are_still_uncertain():
    """-1 -1 with +1 -1 counted beside: mean -.5, variance .75, so -.5 + .8416 · sqrt(.75 / 4) = -.1355"""
    highest = upper_bound(np.array([-1.0, -1.0]), confidence=0.8, largest=1.0)
    assert highest == pytest.approx(-0.1355, abs=5e-4)
