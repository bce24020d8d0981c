"""Candidate against champion: the evaluate stage, on episodes that both have played."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.config.gates import Metric
from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.metrics import (
    all_episodes,
    metric_values,
    pair_episodes,
    scenario_means,
    value_range,
    verified_outcomes,
)
from grpo.evaluation.pass_rates import Estimator, pass_at_k, pass_hat_k, pass_rates
from grpo.evaluation.schema import Evaluation, Interval, PairedComparison
from grpo.evaluation.statistics import SHARE, compare, interval
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
    pairs = pair_episodes(champion, candidate)
    everywhere = metric_values(pairs, metric, key=all_episodes).get("all")
    if everywhere is None:
        raise DataError(
            f"no held-out episode has a {metric}; set the metric of the gates to one that this environment gives"
        )
    ends = value_range(metric, everywhere)

    def compared(name: str, means: NDArray[np.float64], ends: tuple[float, float]) -> PairedComparison:
        return compare(
            name,
            means[:, 0],
            means[:, 1],
            ends=ends,
            confidence=settings.confidence,
            resamples=settings.resamples,
            seed=seed,
        )

    def parts(key: Callable[[Trajectory], str]) -> tuple[PairedComparison, ...]:
        values = metric_values(pairs, metric, key=key)
        return tuple(compared(name, scenario_means(scenarios), ends) for name, scenarios in values.items())

    outcomes = verified_outcomes(pairs)

    def passes(name: str, estimator: Estimator) -> tuple[PairedComparison, ...]:
        rates = pass_rates(outcomes, estimator)
        return tuple(compared(f"{name}{k}", estimates, SHARE) for k, estimates in enumerate(rates, start=1))

    tokens = [sum(trajectory.completion_tokens for trajectory in side) for side in (champion, candidate)]
    return Evaluation(
        metric=metric,
        confidence=settings.confidence,
        champion_policy=champion[0].policy_hash,
        candidate_policy=candidate[0].policy_hash,
        overall=compared("all", scenario_means(everywhere), ends),
        by_category=parts(lambda t: t.category),
        by_difficulty=parts(lambda t: t.difficulty),
        pass_at_k=passes("pass@", pass_at_k),
        pass_hat_k=passes("pass^", pass_hat_k),
        kl_to_base=kl_to_base,
        failed_share=sum(t.stop == "failed" for t in candidate) / len(candidate),
        truncated_share=sum(t.stop == "truncated" for t in candidate) / len(candidate),
        length_ratio=tokens[1] / max(1, tokens[0]),
        episodes=len(candidate),
    )


def mean(played: Sequence[Trajectory], settings: EvaluationSettings, *, metric: Metric, seed: int) -> Interval:
    """Mean of one policy with its interval over scenarios, by the metric as `evaluate` measures it.

    Raises `DataError` where no episode has the metric.
    """
    scenarios = metric_values([(trajectory,) for trajectory in played], metric, key=all_episodes).get("all")
    if scenarios is None:
        raise DataError(f"no held-out episode has a {metric}")
    return interval(
        scenario_means(scenarios)[:, 0],
        ends=value_range(metric, scenarios),
        confidence=settings.confidence,
        resamples=settings.resamples,
        seed=seed,
    )
