"""A weighted sum of rewards, made from settings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, Unscored
from grpo.messages import Message
from grpo.rewards.neural import NeuralReward
from grpo.rewards.reward import Episode, RewardContext, RewardFunction, RewardResult
from grpo.rewards.safety import SafetyReward
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
        SafetyReward,
        NeuralReward,
    )
}


class CompositeReward(RewardFunction):
    """Σ weight · score; the breakdown holds each component's own score.

    An episode that a component cannot judge is not judged, unless the component is `optional`: then it counts without
    that component, and the breakdown lacks it.
    """

    name = "composite"

    def __init__(
        self, rewards: Sequence[RewardFunction], *, weight: float = 1.0, optional: Collection[str] = ()
    ) -> None:
        super().__init__(weight=weight)
        self.rewards = tuple(rewards)
        self.optional = frozenset(optional)
        names = [reward.name for reward in self.rewards]
        if len(set(names)) < len(names):
            raise ConfigError(f"reward components {names} name one reward twice; give it one weight")

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """One conversation as a group of its own."""
        [result] = await self.compute_group([Episode(turns=tuple(turns), context=context)])
        if isinstance(result, Unscored):
            raise result
        return result

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """See the class."""
        columns = await asyncio.gather(*(reward.compute_group(episodes) for reward in self.rewards))
        return [self._sum(results) for results in zip(*columns, strict=True)]

    def _sum(self, results: Sequence[RewardResult | Unscored]) -> RewardResult | Unscored:
        score, breakdown, metadata = 0.0, {}, {}
        for reward, result in zip(self.rewards, results, strict=True):
            if isinstance(result, RewardResult):
                score += reward.weight * result.score
                breakdown[reward.name] = result.score
                metadata[reward.name] = dict(result.metadata)
            elif reward.name not in self.optional:
                return Unscored(f"{reward.name}: {result}")
        if not breakdown:
            return Unscored(f"no component could judge it: {results[0]}")
        return RewardResult(score=score, breakdown=breakdown, metadata=metadata)


def make_reward(components: Sequence[RewardComponent]) -> CompositeReward:
    """The reward that the config asks for."""
    rewards = []
    for component in components:
        try:
            rewards.append(REWARDS[component.kind](weight=component.weight, **component.options))
        except TypeError as error:
            raise ConfigError(f"reward {component.kind} does not take options {component.options}: {error}") from error
    return CompositeReward(rewards, optional=[component.kind for component in components if component.optional])
