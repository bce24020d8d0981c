"""How good one policy is on held-out scenarios: `evaluation.json`, for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from grpo.config.evaluation import EvaluationSettings
from grpo.errors import DataError
from grpo.evaluation.document import Comparison, Interval
from grpo.evaluation.evaluate import evaluate
from grpo.trajectories import Trajectory

SCHEMA_VERSION: Final = "1"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Standing(_Part):
    """How good the policy is on some of the scenarios."""

    name: str
    """`all`, or a category or difficulty."""
    success: Interval | None
    """Share of verified successes; None where the environment verifies nothing."""
    reward: Interval | None
    """Mean reward; None where no episode has one."""


class Measurement(_Part):
    """How good one policy is, and how it speaks."""

    policy: str
    """Hash of its weights."""
    confidence: float
    """Level of the intervals."""
    overall: Standing
    by_category: tuple[Standing, ...]
    by_difficulty: tuple[Standing, ...]
    episodes: int
    failed_share: float
    truncated_share: float
    said: float
    """Tokens that it says in an episode, on average."""

    @property
    def standings(self) -> tuple[Standing, ...]:
        """In all, by category, by difficulty."""
        return (self.overall, *self.by_category, *self.by_difficulty)


class MeasurementDocument(_Part):
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
    measurement: Measurement
    config: str
    """The whole configuration, as YAML."""


def measure(played: Sequence[Trajectory], settings: EvaluationSettings, *, seed: int) -> Measurement:
    """Means of scored episodes with their intervals over scenarios, in all, by category and by difficulty.

    A failed episode counts as 0 of `success` and is left out of `reward`. Raises `DataError` when no episode was
    verified or scored.
    """
    success = _compared(played, settings, "success", seed) if any(t.success is not None for t in played) else {}
    reward = _compared(played, settings, "reward", seed) if any(t.total_reward is not None for t in played) else {}
    if not success and not reward:
        raise DataError(f"none of {len(played)} held-out episodes was verified or scored: there is nothing to measure")

    def standings(part: str) -> tuple[Standing, ...]:
        names = dict.fromkeys([*success.get(part, {}), *reward.get(part, {})])
        return tuple(
            Standing(name=name, success=success.get(part, {}).get(name), reward=reward.get(part, {}).get(name))
            for name in names
        )

    return Measurement(
        policy=played[0].policy_hash,
        confidence=settings.confidence,
        overall=standings("overall")[0],
        by_category=standings("category"),
        by_difficulty=standings("difficulty"),
        episodes=len(played),
        failed_share=sum(t.stop == "failed" for t in played) / len(played),
        truncated_share=sum(t.stop == "truncated" for t in played) / len(played),
        said=sum(t.action_count for t in played) / len(played),
    )


def _compared(
    played: Sequence[Trajectory], settings: EvaluationSettings, metric: Literal["success", "reward"], seed: int
) -> dict[str, dict[str, Interval]]:
    """Intervals of one metric by part and name: the episodes are compared with themselves, both sides are the same."""
    found = evaluate(played, played, settings, metric=metric, kl_to_base=0.0, seed=seed)

    def intervals(comparisons: Sequence[Comparison]) -> dict[str, Interval]:
        return {comparison.name: comparison.candidate for comparison in comparisons}

    return {
        "overall": intervals([found.overall]),
        "category": intervals(found.by_category),
        "difficulty": intervals(found.by_difficulty),
    }
