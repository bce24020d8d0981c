"""How the components of a reward are spread over a rollout, and which of them say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from grpo.trajectories import Trajectory

HIGH_CORRELATION = 0.95
"""Correlation beyond which two components are one reward with two weights."""
_FLAT = 1e-9  # variance of a component that is the same everywhere, up to rounding


class ComponentStatistic(BaseModel):
    """Mean and spread of one component."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float
    std: float
    """Of the population."""
    count: int


class ComponentMoments(BaseModel):
    """Sums over the episodes that have all components; those of two rollouts add up to those of both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...]
    count: int
    sums: tuple[float, ...]  # [components]
    products: tuple[tuple[float, ...], ...]  # [components, components], Σ of the products of two components

    def joined(self, other: ComponentMoments) -> ComponentMoments:
        """Those of the episodes of both; of the components that both have."""
        if not (self.count and other.count):
            return self if self.count else other
        names = tuple(name for name in self.names if name in other.names)
        one, two = self._picked(names), other._picked(names)
        return _moments(names, self.count + other.count, one[0] + two[0], one[1] + two[1])

    def statistics(self) -> dict[str, ComponentStatistic]:
        """Mean, spread and count by component; none without an episode."""
        if not self.count:
            return {}
        means, covariance = self._centred()
        stds = np.sqrt(np.maximum(0, np.diag(covariance)))
        return {
            name: ComponentStatistic(mean=float(mean), std=float(std), count=self.count)
            for name, mean, std in zip(self.names, means, stds, strict=True)
        }

    def correlations(self) -> dict[tuple[str, str], float]:
        """Pearson's ρ of each pair; a component that never changes has none."""
        if not self.count:
            return {}
        return dict(self._correlations())

    def highly_correlated(self) -> dict[tuple[str, str], float]:
        """Pairs with |ρ| > .95."""
        return {pair: rho for pair, rho in self.correlations().items() if abs(rho) > HIGH_CORRELATION}

    def _correlations(self) -> Iterator[tuple[tuple[str, str], float]]:
        _, covariance = self._centred()
        for one, two in combinations(range(len(self.names)), 2):
            if min(covariance[one, one], covariance[two, two]) > _FLAT:
                rho = covariance[one, two] / np.sqrt(covariance[one, one] * covariance[two, two])
                yield (self.names[one], self.names[two]), float(np.clip(rho, -1, 1))

    def _centred(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        means = np.array(self.sums) / self.count
        return means, np.array(self.products) / self.count - np.outer(means, means)

    def _picked(self, names: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = np.array([self.names.index(name) for name in names], dtype=np.intp)
        return np.array(self.sums)[rows], np.array(self.products)[np.ix_(rows, rows)]


def component_moments(trajectories: Sequence[Trajectory]) -> ComponentMoments:
    """Of a scored rollout; an episode that lacks a component, as one not judged does, is left out."""
    names = tuple(dict.fromkeys(name for trajectory in trajectories for name in trajectory.breakdown))
    whole = [t.breakdown for t in trajectories if names and all(name in t.breakdown for name in names)]
    table = np.array([[breakdown[name] for name in names] for breakdown in whole]).reshape(len(whole), len(names))
    return _moments(names, len(whole), table.sum(axis=0), table.T @ table)


def _moments(
    names: tuple[str, ...], count: int, sums: NDArray[np.float64], products: NDArray[np.float64]
) -> ComponentMoments:
    rows = tuple(tuple(map(float, row)) for row in products)
    return ComponentMoments(names=names, count=count, sums=tuple(map(float, sums)), products=rows)
