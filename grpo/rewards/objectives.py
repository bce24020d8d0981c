"""Several objectives: other ways to one score than a sum, and the front of those that nothing beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from grpo.errors import ConfigError, RewardError
from grpo.rewards.composite import CompositeReward, WeightedReward


def weighted_sum(scores: Sequence[float], weights: Sequence[float]) -> float:
    """Σ w·s: [.5 .8] by [.25 .75] → .725"""
    return math.fsum(weight * score for score, weight in zip(scores, weights, strict=True))


def geometric_mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    """∏ s^w with Σw = 1: a 0 anywhere gives 0; [.25 1] by equal weights → .5"""
    _refuse_negative(scores)
    total = math.fsum(weights)
    return math.prod(score ** (weight / total) for score, weight in zip(scores, weights, strict=True))


def minimum_score(scores: Sequence[float], weights: Sequence[float]) -> float:
    """The worst of the scores with a weight: [.5 .8] → .5"""
    return min(score for score, weight in zip(scores, weights, strict=True) if weight)


def product(scores: Sequence[float], weights: Sequence[float]) -> float:
    """∏ s of the scores with a weight: [.5 .8] → .4"""
    _refuse_negative(scores)
    return math.prod(score for score, weight in zip(scores, weights, strict=True) if weight)


AGGREGATIONS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "weighted_sum": weighted_sum,
    "geometric_mean": geometric_mean,
    "min": minimum_score,
    "product": product,
}


class MultiObjectiveReward(CompositeReward):
    """Objectives made into one score by `aggregation`; `normalize` divides the weights by their sum."""

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
            raise ConfigError("aggregation pareto gives a front, not a score to train on; select with pareto_front")
        if aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation {aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}")
        if aggregation != "weighted_sum" or normalize:
            self._check_weights()
        self.aggregation = aggregation
        self.normalize = normalize

    def combine(self, scores: Mapping[str, float]) -> float:
        """See the class; of the objectives that could judge."""
        weights = [self.weights[name] for name in scores]
        if self.normalize:
            weights = [weight / math.fsum(weights) for weight in weights]
        return AGGREGATIONS[self.aggregation](list(scores.values()), weights)

    def _check_weights(self) -> None:
        weights = self.weights.values()
        if min(weights) < 0 or not any(weights):
            raise ConfigError(f"weights {self.weights} must not be negative, and not all 0")


def pareto_front(scores: ArrayLike) -> list[int]:
    """Rows that no other row beats: none is as good in every column and better in one.

    `scores` [candidates, objectives], higher is better; equal rows stand together.

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
        raise RewardError(f"scores {list(scores)} have no product to compare; use weighted_sum or min")
