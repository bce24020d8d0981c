"""pass@k and pass^k: success in at least one, and in every one, of k tries of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Estimator = Callable[[int, int, int], float]


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate that at least one of `k` tries succeeds (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    1 - C(n - c, k) / C(n, k), of n samples with c successes: 2 of 4, k = 2 → 1 - 1/6. `k` is at most n.
    """
    return 1 - comb(samples - successes, k) / comb(samples, k)


def pass_hat_k(samples: int, successes: int, k: int) -> float:
    """Unbiased estimate that all of `k` tries succeed (Yao et al. 2024, τ-bench, arXiv 2406.12045).

    C(c, k) / C(n, k), of n samples with c successes: 2 of 4, k = 2 → 1/6. `k` is at most n.
    """
    return comb(successes, k) / comb(samples, k)


def pass_rates(outcomes: Sequence[NDArray[np.float64]], estimator: Estimator) -> list[NDArray[np.float64]]:
    """Estimates [scenarios, policies] for k = 1 and up, from the outcomes [samples, policies] of each scenario.

    A scenario with fewer than k samples is left out at that k.
    """
    most = max((len(samples) for samples in outcomes), default=0)
    return [
        np.array(
            [
                [estimator(len(samples), int(successes), k) for successes in samples.sum(axis=0)]
                for samples in outcomes
                if len(samples) >= k
            ]
        )
        for k in range(1, most + 1)
    ]
