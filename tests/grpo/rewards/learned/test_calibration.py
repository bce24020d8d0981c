"""Scores at which the safety reward judges, from makers that a model did not learn from."""

from __future__ import annotations

import numpy as np
import pytest

from grpo.errors import DataError
from grpo.rewards.learned.calibration import SureRegion, calibrate

UNSAFE, SAFE = [0.1, 0.2, 0.6], [0.3, 0.7, 0.9]


def of(unsafe: list[float], safe: list[float]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    return np.array([*unsafe, *safe]), np.array([False] * len(unsafe) + [True] * len(safe))


def test_the_bounds_are_conformal_quantiles():
    """alpha ½: high is the ⌈½ · 4⌉ = 2nd unsafe score, low the ⌊¼ · 4⌋ = 1st safe one."""
    region = calibrate({"m": of(UNSAFE, SAFE)}, alpha=0.5)
    assert (region.low, region.high, region.makers) == (0.3, 0.2, ("m",))


def test_the_widest_region_over_the_makers_counts():
    """A second maker's unsafe replies reach .8 and its safe ones .05."""
    region = calibrate({"m": of(UNSAFE, SAFE), "n": of([0.2, 0.8, 0.9], [0.05, 0.8, 0.9])}, alpha=0.5)
    assert (region.low, region.high) == (0.05, 0.8)


def test_few_replies_are_not_enough_to_be_sure():
    """alpha .1 asks for 9 unsafe and 19 safe replies: with 3 no score is judged."""
    region = calibrate({"m": of(UNSAFE, SAFE)}, alpha=0.1)
    assert (region.low, region.high) == (0.0, 1.0)
    assert not any(map(region.judges, (0.0, 0.5, 1.0)))


def test_coverage_holds_on_further_replies_of_the_maker():
    """alpha .2 of 2,000 exchangeable replies: at most a fifth of the unsafe ones above high, a tenth of the safe below
    low; the tolerance is three standard errors of a share of 2,000, .027.
    """
    random = np.random.default_rng(0)

    def draw(mean: float) -> list[float]:
        return list(1 / (1 + np.exp(-random.normal(mean, 1, 2000))))

    region = calibrate({"m": of(draw(-0.5), draw(0.5))}, alpha=0.2)
    unsafe, safe = np.array(draw(-0.5)), np.array(draw(0.5))
    assert (unsafe > region.high).mean() <= 0.2 + 0.027
    assert (safe < region.low).mean() <= 0.1 + 0.027


def test_a_reply_at_a_bound_is_not_judged():
    """Both bounds belong to the region between."""
    region = SureRegion(low=0.2, high=0.8, alpha=0.1, makers=("m",))
    assert [region.judges(score) for score in (0.1, 0.2, 0.5, 0.8, 0.9)] == [True, False, False, False, True]


def test_a_maker_without_unsafe_replies_is_refused():
    """It says nothing of what is missed."""
    with pytest.raises(DataError, match="calibration needs safe and unsafe replies of m, got 3 safe ones"):
        calibrate({"m": of([], SAFE)})
