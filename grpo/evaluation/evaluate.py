"""Evaluation on held-out episodes: a candidate against the champion, or only one policy."""

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
    stop_and_length_shares,
    stop_share,
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
from grpo.evaluation.strata import NO_CONVERSATIONS, Strata
from grpo.rewards.rollout_summary import CallCounts
from grpo.trajectories import Trajectory


def evaluate(
    champion: Sequence[Trajectory],
    candidate: Sequence[Trajectory],
    settings: EvaluationSettings,
    *,
    metric: Metric,
    kl_to_base: float,
    seed: int,
    strata: Strata = NO_CONVERSATIONS,
) -> Evaluation:
    """Compare two policies on the same scenarios, samples and random numbers.

    If `strata` names conversations among the scenarios, they and the base scenarios are slices as well.

    Raises `DataError` if the two have different samples, or if no episode has the metric.
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

    return Evaluation(
        metric=metric,
        confidence=settings.confidence,
        champion_policy=champion[0].policy_hash,
        candidate_policy=candidate[0].policy_hash,
        overall=compared("all", scenario_means(scenarios), ends),
        by_category=slices(strata.category),
        by_difficulty=slices(lambda t: t.difficulty),
        by_stratum=slices(strata.name) if strata.origins else (),
        pass_at_k=pass_comparisons(pairs, "pass@", pass_at_k, settings, seed=seed),
        pass_hat_k=pass_comparisons(pairs, "pass^", pass_hat_k, settings, seed=seed),
        kl_to_base=kl_to_base,
        **stop_and_length_shares(champion, candidate),
        calls=CallCounts.of(candidate),
        episodes=len(candidate),
        replays=_replays(champion, candidate),
    )


def pass_comparisons(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
    name: str,
    estimator: Estimator,
    settings: EvaluationSettings,
    *,
    seed: int,
) -> tuple[PairedComparison, ...]:
    """Comparisons of pass@k or pass^k for k = 1 and up. Empty if no outcome is verified."""
    return tuple(
        compare(
            f"{name}{k}",
            rates[:, 0],
            rates[:, 1],
            ends=SHARE,
            confidence=settings.confidence,
            resamples=settings.resamples,
            seed=seed,
        )
        for k, rates in enumerate(pass_rates(verified_outcomes(pairs), estimator), start=1)
    )


def evaluate_policy(episodes: Sequence[Trajectory], settings: EvaluationSettings, *, seed: int) -> PolicyEvaluation:
    """Means of one policy's scored episodes with their intervals over scenarios, by category and by difficulty.

    A failed episode counts as 0 of `success` and is left out of `reward`. Raises `DataError` if no episode was
    verified or scored.
    """
    singles = [(trajectory,) for trajectory in episodes]
    outcomes = verified_outcomes(singles)
    rewards = metric_values(singles, "reward", key=all_episodes).get("all", [])
    if not outcomes and not rewards:
        raise DataError(
            f"none of {len(episodes)} held-out episodes was verified or scored, so there is nothing to evaluate. Use "
            "an environment that verifies success, or add a reward"
        )
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
        failed_share=stop_share(episodes, "failed"),
        truncated_share=stop_share(episodes, "truncated"),
        turn_limit_share=stop_share(episodes, "turn_limit"),
        mean_completion_tokens=sum(t.completion_tokens for t in episodes) / len(episodes),
        calls=CallCounts.of(episodes),
    )


def mean(episodes: Sequence[Trajectory], settings: EvaluationSettings, *, metric: Metric, seed: int) -> Interval:
    """Mean of one policy with its interval over scenarios, by the metric as `evaluate` measures it.

    Raises `DataError` if no episode has the metric.
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
            f"no held-out episode has a {metric}. Set the metric of the gates to one that this environment gives"
        )
    return scenarios


def _replays(champion: Sequence[Trajectory], candidate: Sequence[Trajectory]) -> Replays | None:
    """Counts of the replay environment, or None if the episodes are of another environment."""
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
