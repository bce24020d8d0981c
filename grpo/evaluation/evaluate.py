"""Evaluation on held-out episodes: a candidate against the champion, or one policy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from grpo.config.gates import Metric
from grpo.config.pipeline import EvaluationSettings
from grpo.environments.replay import CALLS, UNRECORDED_CALLS
from grpo.errors import DataError
from grpo.evaluation.metrics import (
    all_episodes,
    metric_values,
    pair_episodes,
    scenario_means,
    value_range,
    verified_outcomes,
)
from grpo.evaluation.schema import (
    Evaluation,
    Interval,
    PairedComparison,
    PolicyEvaluation,
    ReplayedCalls,
    Replays,
    SliceMetrics,
)
from grpo.evaluation.statistics import SHARE, Estimator, compare, interval, pass_at_k, pass_hat_k, pass_rates
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

    Raises `DataError` when the two have different samples, or no episode has the metric.
    """
    pairs = pair_episodes(champion, candidate)
    scenarios = _scenario_values(pairs, metric)
    ends = value_range(metric, scenarios)

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

    def slices(key: Callable[[Trajectory], str]) -> tuple[PairedComparison, ...]:
        values = metric_values(pairs, metric, key=key)
        return tuple(compared(name, scenario_means(members), ends) for name, members in values.items())

    outcomes = verified_outcomes(pairs)

    def passes(name: str, estimator: Estimator) -> tuple[PairedComparison, ...]:
        rates = pass_rates(outcomes, estimator)
        return tuple(compared(f"{name}{k}", estimates, SHARE) for k, estimates in enumerate(rates, start=1))

    tokens = [sum(trajectory.completion_tokens for trajectory in episodes) for episodes in (champion, candidate)]
    return Evaluation(
        metric=metric,
        confidence=settings.confidence,
        champion_policy=champion[0].policy_hash,
        candidate_policy=candidate[0].policy_hash,
        overall=compared("all", scenario_means(scenarios), ends),
        by_category=slices(lambda t: t.category),
        by_difficulty=slices(lambda t: t.difficulty),
        pass_at_k=passes("pass@", pass_at_k),
        pass_hat_k=passes("pass^", pass_hat_k),
        kl_to_base=kl_to_base,
        failed_share=_stop_share(candidate, "failed"),
        truncated_share=_stop_share(candidate, "truncated"),
        length_ratio=tokens[1] / max(1, tokens[0]),
        episodes=len(candidate),
        replays=_replays(champion, candidate),
    )


def evaluate_policy(episodes: Sequence[Trajectory], settings: EvaluationSettings, *, seed: int) -> PolicyEvaluation:
    """Means of one policy's scored episodes with their intervals over scenarios, by category and by difficulty.

    A failed episode counts as 0 of `success` and is left out of `reward`. Raises `DataError` when no episode was
    verified or scored.
    """
    singles = [(trajectory,) for trajectory in episodes]
    outcomes = verified_outcomes(singles)
    rewards = metric_values(singles, "reward", key=all_episodes).get("all", [])
    if not outcomes and not rewards:
        raise DataError(f"none of {len(episodes)} held-out episodes was verified or scored: nothing to evaluate")
    reward_range = value_range("reward", rewards)

    def bounds(estimates: NDArray[np.float64], ends: tuple[float, float]) -> Interval:
        return interval(
            estimates[:, 0], ends=ends, confidence=settings.confidence, resamples=settings.resamples, seed=seed
        )

    def slices(key: Callable[[Trajectory], str]) -> tuple[SliceMetrics, ...]:
        success = metric_values(singles, "success", key=key) if outcomes else {}
        reward = metric_values(singles, "reward", key=key)
        return tuple(
            SliceMetrics(
                name=name,
                success=bounds(scenario_means(success[name]), SHARE) if name in success else None,
                reward=bounds(scenario_means(reward[name]), reward_range) if name in reward else None,
            )
            for name in dict.fromkeys([*success, *reward])
        )

    return PolicyEvaluation(
        policy=episodes[0].policy_hash,
        confidence=settings.confidence,
        overall=slices(all_episodes)[0],
        by_category=slices(lambda t: t.category),
        by_difficulty=slices(lambda t: t.difficulty),
        pass_at_k=tuple(bounds(estimates, SHARE) for estimates in pass_rates(outcomes, pass_at_k)),
        pass_hat_k=tuple(bounds(estimates, SHARE) for estimates in pass_rates(outcomes, pass_hat_k)),
        episodes=len(episodes),
        failed_share=_stop_share(episodes, "failed"),
        truncated_share=_stop_share(episodes, "truncated"),
        mean_completion_tokens=sum(t.completion_tokens for t in episodes) / len(episodes),
    )


def mean(episodes: Sequence[Trajectory], settings: EvaluationSettings, *, metric: Metric, seed: int) -> Interval:
    """Mean of one policy with its interval over scenarios, by the metric as `evaluate` measures it.

    Raises `DataError` where no episode has the metric.
    """
    scenarios = _scenario_values([(trajectory,) for trajectory in episodes], metric)
    return interval(
        scenario_means(scenarios)[:, 0],
        ends=value_range(metric, scenarios),
        confidence=settings.confidence,
        resamples=settings.resamples,
        seed=seed,
    )


def _scenario_values(episodes: Sequence[tuple[Trajectory, ...]], metric: Metric) -> list[NDArray[np.float64]]:
    scenarios = metric_values(episodes, metric, key=all_episodes).get("all")
    if scenarios is None:
        raise DataError(
            f"no held-out episode has a {metric}; set the metric of the gates to one that this environment gives"
        )
    return scenarios


def _stop_share(episodes: Sequence[Trajectory], stop: str) -> float:
    return sum(trajectory.stop == stop for trajectory in episodes) / len(episodes)


def _replays(champion: Sequence[Trajectory], candidate: Sequence[Trajectory]) -> Replays | None:
    """Counts of the replay environment; None for episodes of another one."""
    before, after = _replayed_calls(champion), _replayed_calls(candidate)
    return None if before is None or after is None else Replays(champion=before, candidate=after)


def _replayed_calls(episodes: Sequence[Trajectory]) -> ReplayedCalls | None:
    states = [trajectory.outcome.state for trajectory in episodes if trajectory.outcome is not None]
    counted = [state for state in states if state.keys() == {CALLS, UNRECORDED_CALLS}]
    if not counted:
        return None
    return ReplayedCalls(
        calls=sum(state[CALLS] for state in counted), unrecorded=sum(state[UNRECORDED_CALLS] for state in counted)
    )
