"""A weighted sum of rewards, made from settings."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.rewards.task import ChecksReward, ConstantReward, TaskCompletionReward, ValidCallsReward
from grpo.rewards.text import ConcisenessReward, KeywordReward, VarietyReward

REWARDS: dict[str, type[RewardFunction]] = {
    reward.name: reward
    for reward in (
        TaskCompletionReward,
        ChecksReward,
        ValidCallsReward,
        ConcisenessReward,
        KeywordReward,
        VarietyReward,
        ConstantReward,
    )
}


class CompositeReward(RewardFunction):
    """Σ weight · score; the breakdown holds each component's own score. A failing component fails the whole."""

    name = "composite"

    def __init__(self, rewards: Sequence[RewardFunction], *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.rewards = tuple(rewards)
        names = [reward.name for reward in self.rewards]
        if len(set(names)) < len(names):
            raise ConfigError(f"reward components {names} name one reward twice; give it one weight")

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        results = {reward.name: await reward.compute_reward(turns, context) for reward in self.rewards}
        score = sum(reward.weight * results[reward.name].score for reward in self.rewards)
        return RewardResult(score=score, breakdown={name: result.score for name, result in results.items()})


def make_reward(components: Sequence[RewardComponent]) -> CompositeReward:
    """The reward that the config asks for."""
    rewards = []
    for component in components:
        try:
            rewards.append(REWARDS[component.kind](weight=component.weight, **component.options))
        except TypeError as error:
            raise ConfigError(f"reward {component.kind} does not take options {component.options}: {error}") from error
    return CompositeReward(rewards)
