"""Intervals over scenarios: by the bootstrap, and for the few of one category."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from grpo.evaluation.document import Comparison, Interval


def interval(values: NDArray[np.float64], *, confidence: float, resamples: int, seed: int) -> Interval:
    """Mean of `values` [scenarios] with its percentile bootstrap interval (Efron 1979)."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), size=(resamples, len(values)))
    means = values[picks].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(mean=float(values.mean()), low=float(low), high=float(high), count=len(values))


def compare(
    name: str,
    champion: NDArray[np.float64],  # [scenarios]
    candidate: NDArray[np.float64],  # [scenarios]
    *,
    confidence: float,
    resamples: int,
    seed: int,
) -> Comparison:
    """Both policies on the same scenarios; the difference is paired, so what both find hard cancels out."""

    def bounds(values: NDArray[np.float64]) -> Interval:
        return interval(values, confidence=confidence, resamples=resamples, seed=seed)

    return Comparison(
        name=name,
        champion=bounds(champion),
        candidate=bounds(candidate),
        difference=bounds(candidate - champion),
    )


def highest_likely(differences: NDArray[np.float64], *, confidence: float, largest: float) -> float:
    """Upper one-sided bound of the mean of paired differences [scenarios], also where they are few.

    Two more scenarios are counted, one that gained and one that lost `largest`: the adjusted Wald interval for paired
    proportions (Bonett and Price 2012), whose width is never 0. The bootstrap of two scenarios that agree is a point.

        both of 2 scenarios lost: differences -1 -1, and +1 -1: mean -.5, variance .75 / 4; at 80 % -.5 + .84 · .433
    """
    counted = np.concatenate([differences, [largest, -largest]])
    error = float(counted.std()) / len(counted) ** 0.5
    return float(counted.mean()) + NormalDist().inv_cdf(confidence) * error
