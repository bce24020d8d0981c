"""The default gates let through what is better, and not what is the same."""

from __future__ import annotations

from grpo.config.pipeline import EvaluationSettings
from tests.benchmarks.gates import GAIN, World, promoted

RUNS = 16
SETTINGS = EvaluationSettings(resamples=200)


def test_the_same_policy_twice_is_hardly_ever_promoted():
    """16 comparisons of a policy with itself, each with its own luck: at most one gets through."""
    assert sum(promoted(World(baseline=0.7), gain=0.0, runs=RUNS, seed=5, settings=SETTINGS)) <= 1


def test_ten_points_are_nearly_always_seen():
    """16 candidates that are truly better on 200 scenarios, of which at least 13 get through."""
    assert sum(promoted(World(baseline=0.7), gain=GAIN, runs=RUNS, seed=6, settings=SETTINGS)) >= 13
