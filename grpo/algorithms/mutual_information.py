"""Mutual information of scenario and reply. If it is near 0, the policy gives every scenario the same replies.

This is template collapse (RAGEN-2, arXiv 2604.06268). Entropy does not show it, because the replies may still differ as
much as before, although they no longer depend on the scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHUFFLES = 19
"""Shuffles of the test: the largest of 20 exchangeable values is the observed one with probability 1/20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualInformation:
    """Dependence of replies on the scenario."""

    nats: float
    """Nats per token, less the mean of the shuffled replies. Without dependence it is around 0, on either side."""
    is_independent: bool
    """True if the replies cannot be told from shuffled ones, at a level of 5 %."""


def mutual_information(
    tokens: Sequence[NDArray[np.int64]], scenarios: NDArray[np.int64], turns: NDArray[np.int64], *, seed: int = 0
) -> MutualInformation:
    """Mutual information of a reply's tokens W and its scenario X, given the number T of its turn, in nats per token.

        I(X; W | T) = 1/n Σ_{x,w,t} c_xwt log(c_xwt c_t / (c_xt c_wt))        c: numbers of tokens, n: all tokens
        two replies of each of two scenarios: a a | b b → log 2 = .6931,  a b | a b → 0

    These values are before the correction for chance: counts of few tokens overestimate it, so the mean over replies
    that were shuffled among the scenarios of their turn is subtracted (adjusted mutual information, Vinh et al. 2010).
    The same shuffles are a permutation test of independence. `tokens` has the token ids of each reply. `scenarios` and
    `turns` are [replies].

    The paper scores each reply under the prompts of other scenarios, which takes a forward pass for each pair of reply
    and prompt. This estimator needs counts only, so that every iteration can have it. It sees which words are used, not
    their order, and with several turns also a dependence on what the environment answered. Raises `ValueError` if
    all replies are empty.
    """
    lengths = np.array([len(reply) for reply in tokens])
    if not lengths.sum():
        raise ValueError("mutual information needs at least one token")
    reply = np.repeat(np.arange(len(tokens)), lengths)
    words = np.unique(np.concatenate(tokens), return_inverse=True)[1]
    labels = np.unique(scenarios, return_inverse=True)[1]
    fixed = _entropy_sum(turns[reply]) - _entropy_sum(_pairs(turns[reply], words))

    def information(labels: NDArray[np.int64]) -> float:
        cells = _pairs(turns, labels)[reply]
        return (_entropy_sum(_pairs(cells, words)) - _entropy_sum(cells) + fixed) / len(words)

    rng = np.random.default_rng(seed)
    shuffled = []
    for _ in range(SHUFFLES):
        moved = labels.copy()
        for turn in np.unique(turns):
            places = np.flatnonzero(turns == turn)
            moved[places] = rng.permutation(labels[places])
        shuffled.append(information(moved))
    observed = information(labels)
    return MutualInformation(
        nats=observed - float(np.mean(shuffled)), is_independent=bool(observed <= max(shuffled) + 1e-12)
    )


def _pairs(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each pair of values, equal for equal pairs."""
    return left * (int(right.max()) + 1) + right


def _entropy_sum(values: NDArray[np.int64]) -> float:
    """Σ c log c over the counts c of the distinct values."""
    counts = np.unique(values, return_counts=True)[1]
    return float((counts * np.log(counts)).sum())
