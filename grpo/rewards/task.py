"""Rewards that ask what the environment verified, not what was said."""

from __future__ import annotations

import json
from collections.abc import Sequence

from grpo.errors import RewardError
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.trajectories import Outcome


def _verified(context: RewardContext, name: str) -> Outcome:
    if context.outcome is None:
        raise RewardError(
            f"reward {name} needs a verified outcome, and the environment gave none for scenario "
            f"{context.scenario_id}; use an environment that verifies, or rewards on text"
        )
    return context.outcome


class TaskCompletionReward(RewardFunction):
    """1 when the environment verified success, else 0."""

    name = "task_completion"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        return RewardResult(score=float(_verified(context, self.name).success))


class ChecksReward(RewardFunction):
    """Share of the environment's single findings that are right: partial credit on the way to success."""

    name = "checks"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        checks = _verified(context, self.name).checks
        if not checks:
            raise RewardError(f"the environment gave no checks for scenario {context.scenario_id}")
        return RewardResult(score=sum(checks.values()) / len(checks))


class ValidCallsReward(RewardFunction):
    """Share of tool results that are no error; 1 when no tool was called."""

    name = "valid_calls"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        results = [json.loads(turn.content) for turn in turns if turn.role == "tool"]
        errors = sum(isinstance(result, dict) and "error" in result for result in results)
        return RewardResult(score=1 - errors / len(results) if results else 1.0)


class ConstantReward(RewardFunction):
    """The same score for everything: the control that must teach nothing."""

    name = "constant"
    probed = False

    def __init__(self, *, weight: float = 1.0, value: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.value = value

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        return RewardResult(score=self.value)
