"""Several rewards as one: a weighted sum, and floors that nothing makes up for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from grpo.errors import ConfigError, Unscored
from grpo.rewards.reward import Episode, GroupReward, RewardFunction, RewardResult, checked_weight


class Objective(TypedDict):
    """A reward under a name of its own."""

    name: str
    reward: RewardFunction
    weight: float


WeightedReward: TypeAlias = RewardFunction | tuple[RewardFunction, float] | Objective
"""A reward with its own weight, a pair whose weight wins, or a mapping that names it too."""


class CompositeReward(GroupReward):
    """Σ weight · score; the breakdown holds each component's own score, the metadata the weights and all parts.

    An episode that a component cannot judge is not judged, unless the component is `optional`: then it counts without
    that component, and the breakdown lacks it. A component below its floor vetoes: the score is the least that scores
    in [0, 1] can give, whatever the others say.
    """

    name = "composite"

    def __init__(
        self,
        rewards: Sequence[WeightedReward],
        *,
        weight: float = 1.0,
        optional: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(weight=weight)
        components = [_component(reward) for reward in rewards]
        names = [component["name"] for component in components]
        if not names:
            raise ConfigError("a composite reward needs at least one component")
        if len(set(names)) < len(names):
            raise ConfigError(f"reward components {names} name one reward twice; give it one weight")
        self.rewards = {component["name"]: component["reward"] for component in components}
        self.weights = {component["name"]: component["weight"] for component in components}
        self.optional = frozenset(optional)
        self.floors = dict(floors or {})
        if strangers := ({*self.optional} | {*self.floors}) - set(names):
            raise ConfigError(f"optional or floors name {sorted(strangers)}, which are no components of {names}")

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """See the class."""
        columns = await asyncio.gather(*(reward.compute_group(episodes) for reward in self.rewards.values()))
        return [self._judge(results) for results in zip(*columns, strict=True)]

    def combine(self, scores: Mapping[str, float]) -> float:
        """The score of an episode from those of its components."""
        return sum(self.weights[name] * score for name, score in scores.items())

    def minimum_score(self) -> float:
        """The least score that components in [0, 1] can give."""
        return sum(min(0.0, weight) for weight in self.weights.values())

    def _judge(self, results: Sequence[RewardResult | Unscored]) -> RewardResult | Unscored:
        scores: dict[str, float] = {}
        metadata: dict[str, Any] = {"weights": dict(self.weights)}
        for name, result in zip(self.rewards, results, strict=True):
            if isinstance(result, RewardResult):
                scores[name] = result.score
                metadata[name] = {**result.metadata, **({"parts": result.breakdown} if result.breakdown else {})}
            elif name not in self.optional:
                return Unscored(f"{name}: {result}")
        if not scores:
            return Unscored(f"no component could judge it: {results[0]}")
        if vetoed := [name for name, floor in self.floors.items() if scores.get(name, floor) < floor]:
            metadata["vetoed"] = vetoed
        return RewardResult(
            score=self.minimum_score() if vetoed else self.combine(scores), breakdown=scores, metadata=metadata
        )


def _component(reward: WeightedReward) -> Objective:
    if isinstance(reward, RewardFunction):
        return Objective(name=reward.name, reward=reward, weight=reward.weight)
    if isinstance(reward, tuple):
        reward = Objective(name=reward[0].name, reward=reward[0], weight=reward[1])
    if strangers := reward.keys() ^ Objective.__annotations__.keys():
        raise ConfigError(
            f"objective {reward!r:.80}: {sorted(strangers)} missing or unknown; give name, reward, weight"
        )
    checked_weight(reward["weight"], reward["name"])
    return reward
