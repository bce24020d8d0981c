"""How good one policy is on held-out scenarios: `evaluation.json`, for machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from grpo.config.pipeline import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.metrics import all_episodes, metric_values, scenario_means, value_range, verified_outcomes
from grpo.evaluation.pass_rates import pass_at_k, pass_hat_k, pass_rates
from grpo.evaluation.schema import Interval
from grpo.evaluation.statistics import SHARE, interval
from grpo.trajectories import Trajectory

SCHEMA_VERSION: Final = "1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class SliceMetrics(_Part):
    """How good the policy is on some of the scenarios."""

    name: str
    """`all`, or a category or difficulty."""
    success: Interval | None
    """Share of verified successes; None where the environment verifies nothing."""
    reward: Interval | None
    """Mean reward; None where no episode has one."""


class PolicyEvaluation(_Part):
    """How good one policy is, and how it speaks."""

    policy: str
    """Hash of its weights."""
    confidence: float
    """Level of the intervals."""
    overall: SliceMetrics
    by_category: tuple[SliceMetrics, ...]
    by_difficulty: tuple[SliceMetrics, ...]
    pass_at_k: tuple[Interval, ...] = ()
    """Success in at least one of k tries of a scenario, k = 1 and up; empty where nothing was verified."""
    pass_hat_k: tuple[Interval, ...] = ()
    """Success in each of k tries of a scenario, k = 1 and up; empty where nothing was verified."""
    episodes: int
    failed_share: float
    truncated_share: float
    said: float
    """Tokens that it says in an episode, on average."""

    @property
    def slices(self) -> tuple[SliceMetrics, ...]:
        """In all, by category, by difficulty."""
        return (self.overall, *self.by_category, *self.by_difficulty)


class EvaluationDocument(_Part):
    """The whole of evaluation.json. A change of meaning raises the schema version."""

    schema_version: Literal["1"] = SCHEMA_VERSION
    name: str
    """Of the config."""
    model: str
    """Address of what was evaluated."""
    created: str
    """UTC, ISO 8601."""
    scenarios: int
    """Scenarios that were played."""
    scenarios_digest: str
    code_digest: str
    measurement: PolicyEvaluation
    config: str
    """The whole configuration, as YAML."""


def measure(played: Sequence[Trajectory], settings: EvaluationSettings, *, seed: int) -> PolicyEvaluation:
    """Means of scored episodes with their intervals over scenarios, in all, by category and by difficulty.

    A failed episode counts as 0 of `success` and is left out of `reward`. Raises `DataError` when no episode was
    verified or scored.
    """
    episodes = [(trajectory,) for trajectory in played]
    outcomes = verified_outcomes(episodes)
    rewards = metric_values(episodes, "reward", key=all_episodes).get("all", [])
    if not outcomes and not rewards:
        raise DataError(f"none of {len(played)} held-out episodes was verified or scored: there is nothing to measure")
    reward_range = value_range("reward", rewards)

    def bounds(estimates: NDArray[np.float64], ends: tuple[float, float]) -> Interval:
        return interval(
            estimates[:, 0], ends=ends, confidence=settings.confidence, resamples=settings.resamples, seed=seed
        )

    def slices(key: Callable[[Trajectory], str]) -> tuple[SliceMetrics, ...]:
        success = metric_values(episodes, "success", key=key) if outcomes else {}
        reward = metric_values(episodes, "reward", key=key)
        return tuple(
            SliceMetrics(
                name=name,
                success=bounds(scenario_means(success[name]), SHARE) if name in success else None,
                reward=bounds(scenario_means(reward[name]), reward_range) if name in reward else None,
            )
            for name in dict.fromkeys([*success, *reward])
        )

    return PolicyEvaluation(
        policy=played[0].policy_hash,
        confidence=settings.confidence,
        overall=slices(all_episodes)[0],
        by_category=slices(lambda t: t.category),
        by_difficulty=slices(lambda t: t.difficulty),
        pass_at_k=tuple(bounds(estimates, SHARE) for estimates in pass_rates(outcomes, pass_at_k)),
        pass_hat_k=tuple(bounds(estimates, SHARE) for estimates in pass_rates(outcomes, pass_hat_k)),
        episodes=len(played),
        failed_share=sum(t.stop == "failed" for t in played) / len(played),
        truncated_share=sum(t.stop == "truncated" for t in played) / len(played),
        said=sum(t.completion_tokens for t in played) / len(played),
    )
