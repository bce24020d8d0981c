"""Candidate against champion: the evaluate stage, on episodes that both have played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from grpo.config.evaluation import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.document import Comparison, Evaluation, Interval
from grpo.evaluation.statistics import compare, interval
from grpo.trajectories import Trajectory


def evaluate(
    champion: Sequence[Trajectory],
    candidate: Sequence[Trajectory],
    settings: EvaluationSettings,
    *,
    metric: Literal["success", "reward"],
    kl_to_base: float,
    seed: int,
) -> Evaluation:
    """Compare two policies on the same scenarios, samples and random numbers.

    A failed episode counts as 0 of `success` and is left out of `reward` together with its twin.
    Raises `DataError` when the two did not play the same samples.
    """
    pairs = _pair(champion, candidate)
    measure = _MEASURES[metric]
    scored = [
        (left, right, before, after)
        for left, right in pairs
        if (before := measure(left)) is not None and (after := measure(right)) is not None
    ]
    if not scored:
        raise DataError(f"no held-out episode has a {metric}; set gates.metric to one that this environment gives")

    def comparison(name: str, chosen: Sequence[tuple[Trajectory, Trajectory, float, float]]) -> Comparison:
        by_scenario: dict[str, list[tuple[float, float]]] = {}
        for left, _, before, after in chosen:
            by_scenario.setdefault(left.scenario_id, []).append((before, after))
        means = np.array([np.mean(values, axis=0) for values in by_scenario.values()])
        return compare(
            name,
            means[:, 0],
            means[:, 1],
            confidence=settings.confidence,
            resamples=settings.resamples,
            seed=seed,
        )

    def split(key: Callable[[Trajectory], str]) -> tuple[Comparison, ...]:
        names = sorted({key(left) for left, *_ in scored}, key=lambda name: (_ORDER.get(name, 0), name))
        return tuple(comparison(name, [row for row in scored if key(row[0]) == name]) for name in names)

    said = [sum(trajectory.action_count for trajectory in side) for side in (champion, candidate)]
    return Evaluation(
        metric=metric,
        confidence=settings.confidence,
        champion_policy=champion[0].policy_hash,
        candidate_policy=candidate[0].policy_hash,
        overall=comparison("all", scored),
        by_category=split(lambda t: t.category),
        by_difficulty=split(lambda t: t.difficulty),
        kl_to_base=kl_to_base,
        failed_share=sum(t.stop != "terminated" for t in candidate) / len(candidate),
        length_ratio=said[1] / max(1, said[0]),
        episodes=len(pairs),
    )


def mean(
    played: Sequence[Trajectory], settings: EvaluationSettings, *, metric: Literal["success", "reward"], seed: int
) -> Interval:
    """How one policy fared on its own, with the interval over scenarios; measured as `evaluate` measures.

    Raises `DataError` where no episode has the metric.
    """
    by_scenario: dict[str, list[float]] = {}
    for trajectory in played:
        value = _MEASURES[metric](trajectory)
        if value is not None:
            by_scenario.setdefault(trajectory.scenario_id, []).append(value)
    if not by_scenario:
        raise DataError(f"no held-out episode has a {metric}; set gates.metric to one that this environment gives")
    means = np.array([np.mean(values) for values in by_scenario.values()])
    return interval(means, confidence=settings.confidence, resamples=settings.resamples, seed=seed)


def _success(trajectory: Trajectory) -> float | None:
    if trajectory.stop == "failed":
        return 0.0
    return None if trajectory.outcome is None else float(trajectory.outcome.success)


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
