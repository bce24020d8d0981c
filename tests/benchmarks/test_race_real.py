"""Medians of the race over seeds."""

from __future__ import annotations

from tests.benchmarks.race import CurvePoint
from tests.benchmarks.race_real import medians


def end(seconds: float, success: float = 0.81) -> CurvePoint:
    return CurvePoint(seconds=seconds, iteration=1, success=success)


def test_a_stopped_run_of_trl_counts_when_it_was_stopped_and_one_of_ours_comes_last() -> None:
    """TRL's second run was stopped at 700 s: its median is at least 700 s, and cannot be said to be 1,100 s."""
    ours, theirs = medians([(end(150), end(650)), (end(90, 0.7), end(700, 0.79)), (end(190), end(1100))])
    assert (ours.seconds, theirs.seconds, theirs.success) == (190, 700, 0.79)
