"""Rewards on the outcome that the environment verified, not on text."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import NotApplicable, RewardError, Unscored
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.strict_json import NotStrictJSON, decode
from grpo.trajectories import NOTHING_EXPECTED, Outcome


def _verified(context: RewardContext, name: str) -> Outcome:
    outcome = context.outcome
    if outcome is None or (outcome.success is None and not outcome.unjudged):
        raise RewardError(
            f"reward {name} needs a verified outcome, and the environment gave none for scenario "
            f"{context.scenario_id}. Use an environment that verifies, or rewards on text"
        )
    return outcome


def _not_judged(outcome: Outcome, context: RewardContext) -> str:
    """Reason why an outcome gives no score."""
    if NOTHING_EXPECTED in outcome.unjudged:
        return f"scenario {context.scenario_id} expects nothing that could succeed. Give it `expected`"
    return (
        f"{', '.join(outcome.unjudged)} of scenario {context.scenario_id} is not judged. Assertions are judged if "
        "the config sets judge"
    )


class TaskCompletionReward(RewardFunction):
    """1 if the environment verified success, else 0. An episode has no score if its success is not judged."""

    name = "task_completion"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """1 or 0. Raises `Unscored` for an unjudged success, `RewardError` without an outcome."""
        outcome = _verified(context, self.name)
        if outcome.success is None:
            raise Unscored(_not_judged(outcome, context))
        return RewardResult(score=float(outcome.success))


class ChecksReward(RewardFunction):
    """Share of the outcome's checks that passed: partial credit on the way to success.

    If an episode has unjudged parts of success, they do not count, and the metadata name them.
    """

    name = "checks"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Passed checks / checks.

        Raises `Unscored` if all parts are unjudged, or if the scenario expects nothing, because saying goodbye would
        then pass every check. Raises `RewardError` if there are no checks.
        """
        outcome = _verified(context, self.name)
        checks, metadata = outcome.checks, {"unjudged": list(outcome.unjudged)} if outcome.unjudged else {}
        if NOTHING_EXPECTED in outcome.unjudged or (not checks and outcome.unjudged):
            raise Unscored(_not_judged(outcome, context))
        if not checks:
            raise RewardError(f"the environment gave no checks for scenario {context.scenario_id}")
        return RewardResult(score=sum(checks.values()) / len(checks), metadata=metadata)


class ValidCallsReward(RewardFunction):
    """Share of tool results without an error. An episode without a tool call has no score, because none was valid."""

    name = "valid_calls"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """Results without an `error` key / results. Raises `NotApplicable` if there is no result."""
        failures = [_is_error(turn.content) for turn in turns if turn.role == "tool"]
        if not failures:
            raise NotApplicable(f"scenario {context.scenario_id}: the agent called no tool, so no call was valid")
        return RewardResult(score=1 - sum(failures) / len(failures))


def _is_error(content: str) -> bool:
    """Return True for a tool result with an `error` key, as JSON or as TRL writes it: `{'error': …}`."""
    try:
        result = decode(content)
    except NotStrictJSON:
        return content.lstrip().startswith(("{'error'", '{"error"'))
    return isinstance(result, dict) and "error" in result


class EnvironmentReward(RewardFunction):
    """Reward that the environment itself gives the episode: `get_reward` of TRL's classes, the rewards of a verifiers
    task."""

    name = "environment"
    probed = False

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """The environment's number. Raises `Unscored` if it gave none."""
        if context.outcome is None or context.outcome.reward is None:
            raise Unscored(
                f"the environment gave scenario {context.scenario_id} no reward, because it has no get_reward or the "
                "episode was cut off before it could be scored"
            )
        return RewardResult(score=context.outcome.reward)


class ConstantReward(RewardFunction):
    """The same score for every episode: a control without a learning signal."""

    name = "constant"
    probed = False

    def __init__(self, *, weight: float = 1.0, value: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.value = value

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """The constant."""
        return RewardResult(score=self.value)
