"""Several rewards as one: a weighted sum or another aggregation, floors that veto, and the Pareto front."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from grpo.errors import ConfigError, NotApplicable, RewardError, Unscored
from grpo.rewards.parameters import is_of_trl
from grpo.rewards.reward import (
    Episode,
    EpisodeCopies,
    FunctionReward,
    GroupReward,
    RewardFunction,
    RewardResult,
    Scorer,
    checked_results,
    checked_weight,
    reward_code,
)
from grpo.rewards.trl import TRLReward


class Objective(TypedDict):
    """A reward with its own name and weight."""

    name: str
    reward: RewardFunction
    weight: float


WeightedReward: TypeAlias = RewardFunction | Scorer | tuple[RewardFunction | Scorer, float] | Objective
"""A reward with its own weight, a pair with a weight that takes precedence, or a mapping that also gives a name."""


class CompositeReward(GroupReward):
    """Σ weight · score. The breakdown holds each component's own score, the metadata the weights and all parts.

    If a component cannot score an episode, the episode has no score, unless the component is `optional` or does not
    apply to the episode (`NotApplicable`). Then only the others count, and the breakdown lacks it. If a component is
    below its floor, it vetoes: the score is the minimum that scores in [0, 1] can give, whatever the others give.

    Each component gets its own copies of the episodes, so that a component that changes a scenario, an outcome or a
    call does not change the score of another one.
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
            raise ConfigError(
                f"reward components {names} name one reward twice. Give it one weight, or "
                "give two functions different names by `__name__`"
            )
        self.rewards = {component["name"]: component["reward"] for component in components}
        self.weights = {component["name"]: component["weight"] for component in components}
        needed = (name for component in components for name in component["reward"].needed_columns)
        self.needed_columns = list(dict.fromkeys(needed))
        self.optional = frozenset(optional)
        self.floors = dict(floors or {})
        if unknown := ({*self.optional} | {*self.floors}) - set(names):
            raise ConfigError(f"optional or floors name unknown components {sorted(unknown)}. Choose from {names}")

    async def compute_group(self, episodes: Sequence[Episode]) -> list[RewardResult | Unscored]:
        """Score the group with every component, and combine the scores of each episode."""
        first, *others = self.rewards
        copies = [EpisodeCopies(episode) for episode in episodes] if others else []
        columns = await asyncio.gather(
            self._column(first, episodes),
            *(self._column(name, copies) for name in others),
        )
        return [self._combined(results) for results in zip(*columns, strict=True)]

    async def _column(self, name: str, group: Sequence[Episode | EpisodeCopies]) -> Sequence[RewardResult | Unscored]:
        """Results of one component. Copies are made when it begins, because a large world takes memory."""
        episodes = [episode.copy() if isinstance(episode, EpisodeCopies) else episode for episode in group]
        with reward_code(name):
            results = list(await self.rewards[name].compute_group(episodes))
        return checked_results(results, episodes, name)

    def combine(self, scores: Mapping[str, float]) -> float:
        """The score of an episode from the scores of its components."""
        return sum(self.weights[name] * score for name, score in scores.items())

    def combine_turns(self, scores: Mapping[str, Sequence[float]]) -> list[float]:
        """The parts of an episode's score that belong to its turns, from the turn scores of its components.

        weight .5 of [1 0], weight 1 of [.2 .2]   →  [.7 .2]
        """
        weighted = [[self.weights[name] * score for score in of_turns] for name, of_turns in scores.items()]
        return [math.fsum(turn) for turn in zip(*weighted, strict=True)]

    def minimum_score(self) -> float:
        """The least score that components in [0, 1] can give."""
        return sum(min(0.0, weight) for weight in self.weights.values())

    def _combined(self, results: Sequence[RewardResult | Unscored]) -> RewardResult | Unscored:
        scores: dict[str, float] = {}
        metadata: dict[str, Any] = {"weights": dict(self.weights)}
        for name, result in zip(self.rewards, results, strict=True):
            if isinstance(result, RewardResult):
                scores[name] = result.score
                metadata[name] = {**result.metadata, **({"parts": result.breakdown} if result.breakdown else {})}
            elif isinstance(result, NotApplicable):
                continue
            elif name not in self.optional or name in self.floors:  # a constraint that was not checked does not hold
                return Unscored(f"{name}: {result}")
        if not scores:
            return Unscored(f"no component could score it: {results[0]}")
        if vetoed := [name for name, floor in self.floors.items() if scores.get(name, floor) < floor]:
            metadata["vetoed"] = vetoed
        if vetoed:
            return RewardResult(score=self.minimum_score(), breakdown=scores, metadata=metadata)
        turn_scores = self.combine_turns(
            {
                name: result.turn_scores
                for name, result in zip(self.rewards, results, strict=True)
                if isinstance(result, RewardResult) and result.turn_scores
            }
        )
        return RewardResult(score=self.combine(scores), breakdown=scores, metadata=metadata, turn_scores=turn_scores)


def as_reward(given: RewardFunction | Scorer) -> RewardFunction:
    """The reward itself, or a reward of a plain function, of the turns or in TRL's form.

    Raises `ConfigError` for anything else.
    """
    if isinstance(given, RewardFunction):
        return given
    if not callable(given):
        raise ConfigError(
            f"a reward is a function or a RewardFunction, and this is a {type(given).__name__}. Combine several in "
            "CompositeReward([…])"
        )
    return TRLReward(given) if is_of_trl(given) else FunctionReward(given)


def _component(reward: WeightedReward) -> Objective:
    if isinstance(reward, RewardFunction) or callable(reward):
        single = as_reward(reward)
        return Objective(name=single.name, reward=single, weight=single.weight)
    if isinstance(reward, tuple):
        single = as_reward(reward[0])
        reward = Objective(name=single.name, reward=single, weight=reward[1])
    if wrong := reward.keys() ^ Objective.__annotations__.keys():
        raise ConfigError(
            f"objective {reward!r:.80}: {sorted(wrong)} missing or unknown. Give exactly the keys name, reward and "
            "weight"
        )
    checked_weight(reward["weight"], reward["name"])
    return reward


def weighted_sum(scores: Sequence[float], weights: Sequence[float]) -> float:
    """Σ w·s: [.5 .8] by [.25 .75] → .725"""
    return math.fsum(weight * score for score, weight in zip(scores, weights, strict=True))


def geometric_mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    """∏ s^w with Σw = 1, so that a 0 anywhere gives 0: [.25 1] by equal weights → .5"""
    _refuse_negative(scores)
    total = math.fsum(weights)
    return math.prod(score ** (weight / total) for score, weight in zip(scores, weights, strict=True))


def minimum(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The least of the scores with a weight: [.5 .8] → .5"""
    return min(score for score, weight in zip(scores, weights, strict=True) if weight)


def product(scores: Sequence[float], weights: Sequence[float]) -> float:
    """∏ s of the scores with a weight: [.5 .8] → .4"""
    _refuse_negative(scores)
    return math.prod(score for score, weight in zip(scores, weights, strict=True) if weight)


AGGREGATIONS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "weighted_sum": weighted_sum,
    "geometric_mean": geometric_mean,
    "min": minimum,
    "product": product,
}


class MultiObjectiveReward(CompositeReward):
    """Objectives combined into one score by `aggregation`. `normalize` divides the weights by their sum."""

    name = "multi_objective"

    def __init__(
        self,
        objectives: Sequence[WeightedReward],
        *,
        aggregation: str = "weighted_sum",
        normalize: bool = True,
        weight: float = 1.0,
        optional: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(objectives, weight=weight, optional=optional, floors=floors)
        if aggregation == "pareto":
            raise ConfigError("aggregation pareto gives a front, not a score to train on. Select with pareto_front")
        if aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation {aggregation!r} is unknown. Use one of {', '.join(AGGREGATIONS)}")
        if aggregation != "weighted_sum" or normalize:
            self._check_weights()
        self.aggregation = aggregation
        self.normalize = normalize

    def combine(self, scores: Mapping[str, float]) -> float:
        """Aggregate the scores of the objectives that have one."""
        weights = [self.weights[name] for name in scores]
        if self.normalize:
            weights = [weight / math.fsum(weights) for weight in weights]
        return AGGREGATIONS[self.aggregation](list(scores.values()), weights)

    def combine_turns(self, scores: Mapping[str, Sequence[float]]) -> list[float]:
        """As in a composite, if `aggregation` is a weighted sum and not normalized. Otherwise empty.

        The score is then not the sum of the turns' parts.
        """
        plain = self.aggregation == "weighted_sum" and not self.normalize
        return super().combine_turns(scores) if plain else []

    def _check_weights(self) -> None:
        weights = self.weights.values()
        if min(weights) < 0 or not any(weights):
            raise ConfigError(f"weights {self.weights} must not be negative, and not all 0")


def pareto_front(scores: ArrayLike) -> list[int]:
    """Indices of the rows that are not dominated: no other row is as good in every column and better in one.

    `scores` [candidates, objectives], higher is better. Equal rows are all kept, or all dominated.

        [[1 0], [0 1], [.5 .5], [.4 .4]] → [0, 1, 2]
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or np.isnan(table).any():
        raise RewardError(f"a front needs a table [candidates, objectives] of numbers, got shape {table.shape}")
    return [
        index for index, row in enumerate(table) if not ((table >= row).all(axis=1) & (table > row).any(axis=1)).any()
    ]


def _refuse_negative(scores: Sequence[float]) -> None:
    if min(scores) < 0:
        raise RewardError(f"scores {list(scores)} hold a negative one, which has no product. Use weighted_sum or min")
