"""Success and reward of held-out episodes, grouped by scenario and slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.config.gates import Metric
from grpo.errors import DataError
from grpo.evaluation.statistics import SHARE
from grpo.trajectories import Stop, Trajectory

MetricValues = dict[str, list[NDArray[np.float64]]]
"""Arrays [samples, policies], one per scenario, by name of the slice (a category, a difficulty, or `all`)."""


def all_episodes(_: Trajectory) -> str:
    """Key of the slice of all episodes."""
    return "all"


def pair_episodes(
    champion: Sequence[Trajectory], candidate: Sequence[Trajectory]
) -> list[tuple[Trajectory, Trajectory]]:
    """Pair the episodes of both policies by scenario, sample and seed.

    Raises `DataError` for an episode without its counterpart.
    """
    by_key = {(t.scenario_id, t.sample, t.seed): t for t in candidate}
    if len(by_key) != len(champion) or any((t.scenario_id, t.sample, t.seed) not in by_key for t in champion):
        raise DataError("champion and candidate were not run on the same scenarios, samples and seeds")
    return [(t, by_key[t.scenario_id, t.sample, t.seed]) for t in champion]


def metric_values(
    episodes: Iterable[tuple[Trajectory, ...]], metric: Metric, *, key: Callable[[Trajectory], str]
) -> MetricValues:
    """Metric of each episode by slice. A tuple of `episodes` holds one episode of each policy.

    A failed episode counts as 0 of `success`, and is left out of `reward` together with its counterpart. An episode is
    also left out with its counterpart if it was not verified or scored. Slices are sorted, difficulties from easy to
    hard.
    """
    read = _METRICS[metric]
    by_name: dict[str, dict[str, list[list[float]]]] = {}
    for row in episodes:
        values = [value for value in map(read, row) if value is not None]
        if len(values) == len(row):
            by_name.setdefault(key(row[0]), {}).setdefault(row[0].scenario_id, []).append(values)
    names = sorted(by_name, key=lambda name: (_ORDER.get(name, 0), name))
    return {name: [np.array(samples) for samples in by_name[name].values()] for name in names}


def scenario_means(scenarios: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Means over the samples, [scenarios, policies]."""
    return np.array([samples.mean(axis=0) for samples in scenarios])


def verified_outcomes(episodes: Sequence[tuple[Trajectory, ...]]) -> list[NDArray[np.float64]]:
    """Successes [samples, policies] of each scenario. Empty if the environment verifies nothing."""
    if not any(trajectory.success is not None for row in episodes for trajectory in row):
        return []
    return metric_values(episodes, "success", key=all_episodes).get("all", [])


def stop_and_length_shares(champion: Sequence[Trajectory], candidate: Sequence[Trajectory]) -> dict[str, float]:
    """Fields of an `Evaluation`: shares of the candidate's episodes by stop reason, and the length ratio."""
    tokens = [sum(trajectory.completion_tokens for trajectory in episodes) for episodes in (champion, candidate)]
    return {
        "failed_share": stop_share(candidate, "failed"),
        "truncated_share": stop_share(candidate, "truncated"),
        "turn_limit_share": stop_share(candidate, "turn_limit"),
        "length_ratio": tokens[1] / max(1, tokens[0]),
    }


def stop_share(episodes: Sequence[Trajectory], stop: Stop) -> float:
    """Share of the episodes that stopped so."""
    return sum(trajectory.stop == stop for trajectory in episodes) / len(episodes)


def value_range(metric: Metric, scenarios: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Range of a metric: 0 to 1 for `success`, and the range of the observed values and 0 for `reward`."""
    if metric == "success":
        return SHARE
    values = [0.0, *(float(value) for samples in scenarios for value in samples.flat)]
    return min(values), max(values)


def _success(trajectory: Trajectory) -> float | None:
    if trajectory.stop == "failed":
        return 0.0
    return None if trajectory.success is None else float(trajectory.success)


_ORDER = {"easy": 1, "medium": 2, "hard": 3}
_METRICS: dict[str, Callable[[Trajectory], float | None]] = {
    "success": _success,
    "reward": lambda trajectory: trajectory.total_reward,
}
