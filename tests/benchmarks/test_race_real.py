"""Medians of the race over seeds."""

from __future__ import annotations

from tests.benchmarks.race import CurvePoint
from tests.benchmarks.race_real import medians


def end(seconds: float, success: float = 0.81) -> CurvePoint:
    return CurvePoint(seconds=seconds, iteration=1, success=success)


def test_a_run_of_ours_without_the_target_is_sorted_last_and_one_of_trl_by_its_lower_bound() -> None:
    """TRL's second run was stopped at 700 s, so that its median may be anything from 700 to 1,100 s."""
    ours, theirs = medians([(end(150), end(650)), (end(90, 0.7), end(700, 0.79)), (end(190), end(1100))])
    assert (ours.seconds, theirs.seconds, theirs.success) == (190, 700, 0.79)
