"""Intervals over scenarios: by the bootstrap, and for the few of one category."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from grpo.evaluation.schema import Interval, PairedComparison

SHARE = (0.0, 1.0)
"""Ends of the range of a share."""
_END_WEIGHT = 0.5
"""Scenarios that are counted at each end of the range."""


def interval(
    values: NDArray[np.float64],  # [scenarios]
    *,
    ends: tuple[float, float],
    confidence: float,
    resamples: int,
    seed: int,
) -> Interval:
    """Mean of `values` with its Bayesian bootstrap interval (Rubin 1981), which has width also where all are equal.

    Half a scenario is counted at each of the `ends` of the range in which a value can lie. Of zeros and ones this is
    the Jeffreys interval, the quantiles of Beta(successes + 1/2, failures + 1/2), which Brown, Cai and DasGupta (2001,
    "Interval estimation for a binomial proportion", eq. 8) recommend; of means over samples and of paired differences
    it is the same with their own spread, so several samples of a scenario count as one. The mean is that of `values`,
    and is always inside.

        20 successes of 20 → 1.000 [.883, 1.000]; 20 paired differences of 0 → 0 [-.10, .10]

    Coverage of 95 % in 1,500 simulated evaluations of 20, 60 and 200 scenarios, a true share of .98, played once: .945,
    .976 and .967, where the percentile bootstrap has .318, .689 and .912 (docs/log.md).
    """
    rng = np.random.default_rng(seed)
    weights = np.hstack(
        [rng.standard_exponential((resamples, len(values))), rng.standard_gamma(_END_WEIGHT, (resamples, len(ends)))]
    )
    means = weights @ np.concatenate([values, ends]) / weights.sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    mean = float(values.mean())
    return Interval(mean=mean, low=min(mean, float(low)), high=max(mean, float(high)), count=len(values))


def compare(
    name: str,
    champion: NDArray[np.float64],  # [scenarios]
    candidate: NDArray[np.float64],  # [scenarios]
    *,
    ends: tuple[float, float],
    confidence: float,
    resamples: int,
    seed: int,
) -> PairedComparison:
    """Both policies on the same scenarios; the difference is paired, so what both find hard cancels out."""
    largest = ends[1] - ends[0]

    def bounds(values: NDArray[np.float64], ends: tuple[float, float]) -> Interval:
        return interval(values, ends=ends, confidence=confidence, resamples=resamples, seed=seed)

    return PairedComparison(
        name=name,
        champion=bounds(champion, ends),
        candidate=bounds(candidate, ends),
        difference=bounds(candidate - champion, (-largest, largest)),
    )


def upper_bound(differences: NDArray[np.float64], *, confidence: float, largest: float) -> float:
    """Upper one-sided bound of the mean of paired differences [scenarios], also where they are few.

    Two more scenarios are counted, one that gained and one that lost `largest`: the adjusted Wald interval for paired
    proportions (Bonett and Price 2012), whose width is never 0.

        both of 2 scenarios lost: differences -1 -1, and +1 -1: mean -.5, variance .75 / 4; at 80 % -.5 + .84 · .433
    """
    counted = np.concatenate([differences, [largest, -largest]])
    error = float(counted.std()) / len(counted) ** 0.5
    return float(counted.mean()) + NormalDist().inv_cdf(confidence) * error
