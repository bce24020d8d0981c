from __future__ import annotations

import numpy as np
import pytest

from grpo.algorithms.advantages import group_advantages

REWARDS = np.array([0.7, 0.9, 0.6, 0.8])


def test_centred_on_the_group_mean():
    """mean .75 → −.05 .15 −.15 .05"""
    assert group_advantages(REWARDS, scale_by_std=False) == pytest.approx([-0.05, 0.15, -0.15, 0.05])


def test_scaled_by_the_sample_standard_deviation():
    """std = sqrt((.0025 + .0225 + .0225 + .0025) / 3) = .129099; .15 / (.129099 + .0001) = 1.1610"""
    expected = [-0.05 / 0.1291994, 0.15 / 0.1291994, -0.15 / 0.1291994, 0.05 / 0.1291994]
    assert group_advantages(REWARDS, scale_by_std=True) == pytest.approx(expected, abs=1e-5)


def test_a_constant_group_gives_zeros_and_no_nan():
    """Nothing to learn is 0, not 0/0."""
    assert group_advantages(np.full(4, 0.3), scale_by_std=True).tolist() == [0, 0, 0, 0]


def test_a_failed_sibling_stays_out_of_the_baseline():
    """[1, None, 0] → mean .5 of the two; None is not 0"""
    advantages = group_advantages(np.array([1.0, np.nan, 0.0]), scale_by_std=False)
    assert advantages[[0, 2]].tolist() == [0.5, -0.5]
    assert np.isnan(advantages[1])


def test_one_valid_sibling_teaches_nothing():
    """There is nobody to be compared with."""
    assert group_advantages(np.array([1.0, np.nan]), scale_by_std=True)[0] == 0
