"""Candidate against champion: the evaluate stage, on episodes that both have played."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.config.evaluation import EvaluationSettings
from grpo.config.gates import Metric
from grpo.errors import DataError
from grpo.evaluation.document import Comparison, Evaluation, Interval
from grpo.evaluation.statistics import compare, interval
from grpo.trajectories import Trajectory


def evaluate(
    champion: Sequence[Trajectory],
    candidate: Sequence[Trajectory],
    settings: EvaluationSettings,
    *,
    metric: Metric,
    kl_to_base: float,
    seed: int,
) -> Evaluation:
    """Compare two policies on the same scenarios, samples and random numbers.

    Raises `DataError` when the two did not play the same samples, or none of them has the metric.
    """

    def comparisons(key: Callable[[Trajectory], str]) -> tuple[Comparison, ...]:
        means = heldout_means(champion, candidate, metric, key=key)
        if not means:
            raise DataError(
                f"no held-out episode has a {metric}; set the metric of the gates to one that this environment gives"
            )
        return tuple(
            compare(
                name,
                means[name][:, 0],
                means[name][:, 1],
                confidence=settings.confidence,
                resamples=settings.resamples,
                seed=seed,
            )
            for name in sorted(means, key=lambda name: (_ORDER.get(name, 0), name))
        )

    said = [sum(trajectory.action_count for trajectory in side) for side in (champion, candidate)]
    return Evaluation(
        metric=metric,
        confidence=settings.confidence,
        champion_policy=champion[0].policy_hash,
        candidate_policy=candidate[0].policy_hash,
        overall=comparisons(lambda _: "all")[0],
        by_category=comparisons(lambda t: t.category),
        by_difficulty=comparisons(lambda t: t.difficulty),
        kl_to_base=kl_to_base,
        failed_share=sum(t.stop == "failed" for t in candidate) / len(candidate),
        truncated_share=sum(t.stop == "truncated" for t in candidate) / len(candidate),
        length_ratio=said[1] / max(1, said[0]),
        episodes=len(candidate),
    )


def heldout_means(
    champion: Sequence[Trajectory],
    candidate: Sequence[Trajectory],
    metric: Metric,
    *,
    key: Callable[[Trajectory], str],
) -> dict[str, NDArray[np.float64]]:
    """Means over the samples of each scenario, [scenarios, 2] for champion and candidate, by `key`.

    A failed episode counts as 0 of `success` and is left out of `reward` together with its twin; what nobody
    verified or scored is left out. Raises `DataError` when the two did not play the same samples.
    """
    measure = _MEASURES[metric]
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for left, right in _pair(champion, candidate):
        before, after = measure(left), measure(right)
        if before is not None and after is not None:
            found.setdefault(key(left), {}).setdefault(left.scenario_id, []).append((before, after))
    return {
        name: np.array([np.mean(values, axis=0) for values in scenarios.values()]) for name, scenarios in found.items()
    }


def mean(played: Sequence[Trajectory], settings: EvaluationSettings, *, metric: Metric, seed: int) -> Interval:
    """How one policy fared on its own, with the interval over scenarios; measured as `evaluate` measures.

    Raises `DataError` where no episode has the metric.
    """
    by_scenario: dict[str, list[float]] = {}
    for trajectory in played:
        value = _MEASURES[metric](trajectory)
        if value is not None:
            by_scenario.setdefault(trajectory.scenario_id, []).append(value)
    if not by_scenario:
        raise DataError(f"no held-out episode has a {metric}")
    means = np.array([np.mean(values) for values in by_scenario.values()])
    return interval(means, confidence=settings.confidence, resamples=settings.resamples, seed=seed)


def _success(trajectory: Trajectory) -> float | None:
    if trajectory.stop == "failed":
        return 0.0
    return None if trajectory.success is None else float(trajectory.success)


_ORDER = {"easy": 1, "medium": 2, "hard": 3}
_MEASURES: dict[str, Callable[[Trajectory], float | None]] = {
    "success": _success,
    "reward": lambda trajectory: trajectory.total_reward,
}


def _pair(left: Sequence[Trajectory], right: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    twins = {(t.scenario_id, t.sample, t.seed): t for t in right}
    if len(twins) != len(left) or any((t.scenario_id, t.sample, t.seed) not in twins for t in left):
        raise DataError("champion and candidate did not play the same scenarios, samples and seeds")
    return [(t, twins[t.scenario_id, t.sample, t.seed]) for t in left]
