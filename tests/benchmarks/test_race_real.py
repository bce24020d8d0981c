"""Median of the race over seeds."""

from __future__ import annotations

from tests.benchmarks.race import CurvePoint
from tests.benchmarks.race_real import median


def end(seconds: float, success: float = 0.81) -> CurvePoint:
    return CurvePoint(seconds=seconds, cpu_s=seconds, iteration=1, success=success)


def test_runs_without_the_target_are_sorted_last() -> None:
    """Of 150 s, 90 s without the target and 190 s the median is 190 s; two without it are themselves the median."""
    assert median([end(150), end(90, 0.7), end(190)]) == end(190)
    assert median([end(900, 0.79), end(650), end(910, 0.7)]) == end(900, 0.79)
