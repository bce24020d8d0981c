"""Success and reward of held-out episodes, by scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.config.gates import Metric
from grpo.errors import DataError
from grpo.evaluation.statistics import SHARE
from grpo.trajectories import Trajectory

MetricValues = dict[str, list[NDArray[np.float64]]]
"""Arrays [samples, policies], one of each scenario, by category, by difficulty, or in `all`."""


def all_episodes(_: Trajectory) -> str:
    """Key that all episodes share."""
    return "all"


def pair_episodes(
    champion: Sequence[Trajectory], candidate: Sequence[Trajectory]
) -> list[tuple[Trajectory, Trajectory]]:
    """Episodes of both policies from the same scenario, sample and random numbers.

    Raises `DataError` when the two did not play the same.
    """
    twins = {(t.scenario_id, t.sample, t.seed): t for t in candidate}
    if len(twins) != len(champion) or any((t.scenario_id, t.sample, t.seed) not in twins for t in champion):
        raise DataError("champion and candidate did not play the same scenarios, samples and seeds")
    return [(t, twins[t.scenario_id, t.sample, t.seed]) for t in champion]


def metric_values(
    episodes: Iterable[tuple[Trajectory, ...]], metric: Metric, *, key: Callable[[Trajectory], str]
) -> MetricValues:
    """The metric of each episode; a tuple of `episodes` holds one of each policy.

    A failed episode counts as 0 of `success` and is left out of `reward` together with its twins; what was not
    verified or scored is left out. Names are in order, difficulties from easy to hard.
    """
    measure = _MEASURES[metric]
    by_name: dict[str, dict[str, list[list[float]]]] = {}
    for twins in episodes:
        values = [value for value in map(measure, twins) if value is not None]
        if len(values) == len(twins):
            by_name.setdefault(key(twins[0]), {}).setdefault(twins[0].scenario_id, []).append(values)
    names = sorted(by_name, key=lambda name: (_ORDER.get(name, 0), name))
    return {name: [np.array(samples) for samples in by_name[name].values()] for name in names}


def scenario_means(scenarios: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Means over the samples, [scenarios, policies]."""
    return np.array([samples.mean(axis=0) for samples in scenarios])


def verified_outcomes(episodes: Sequence[tuple[Trajectory, ...]]) -> list[NDArray[np.float64]]:
    """Successes [samples, policies] of each scenario; empty where the environment verifies nothing."""
    if not any(trajectory.success is not None for twins in episodes for trajectory in twins):
        return []
    return metric_values(episodes, "success", key=all_episodes).get("all", [])


def value_range(metric: Metric, scenarios: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Range in which a value can lie: 0 to 1 for `success`; for `reward` the values seen, and 0."""
    if metric == "success":
        return SHARE
    seen = [0.0, *(float(value) for samples in scenarios for value in samples.flat)]
    return min(seen), max(seen)


def _success(trajectory: Trajectory) -> float | None:
    if trajectory.stop == "failed":
        return 0.0
    return None if trajectory.success is None else float(trajectory.success)


_ORDER = {"easy": 1, "medium": 2, "hard": 3}
_MEASURES: dict[str, Callable[[Trajectory], float | None]] = {
    "success": _success,
    "reward": lambda trajectory: trajectory.total_reward,
}
