from __future__ import annotations

import numpy as np
import pytest

from grpo.errors import DataError
from grpo.rewards.learned.metrics import auc, pair_accuracy, wilson_interval


def test_auc_counts_pairs_in_order():
    """Good .9 .6, bad .7 .1: 3 of 4 pairs; all tied: ½."""
    metric = auc(np.array([0.9, 0.6, 0.7, 0.1]), [True, True, False, False])
    assert metric.value == 0.75
    assert auc(np.array([1.0, 1.0]), [True, False]).value == 0.5
    with pytest.raises(DataError, match="2 and 0"):
        auc(np.array([1.0, 2.0]), [True, True])


def test_the_interval_of_an_auc_is_delongs():
    """Good win (½, 1) of the bad, bad lose (½, 1): both variances ⅛; √(⅛/2 + ⅛/2) = .3536, times 1.96 = .693."""
    metric = auc(np.array([0.9, 0.6, 0.7, 0.1]), [True, True, False, False])
    assert metric.low == pytest.approx(0.75 - 0.693, abs=1e-3)
    assert metric.high == 1.0


def test_the_interval_of_a_share_is_wilsons():
    """8 of 10: z = 1.96, centre (.8 + .192)/1.384 = .7167, spread .2266; 0 of 5 begins at 0, 5 of 5 ends at 1."""
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 5)[0] == pytest.approx(0, abs=1e-12)
    assert wilson_interval(5, 5)[1] == pytest.approx(1, abs=1e-12)


def test_a_tie_is_half_right():
    """One right, one tied: 1½ of 2."""
    assert pair_accuracy(np.array([1.0, 0.0]), np.array([0.0, 0.0])).value == 0.75
