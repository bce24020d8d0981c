"""Teaching a network: from labelled replies, from pairs, or from rewards that were given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grpo.rewards.learned.features import Bags
from grpo.rewards.learned.network import Adam, Floats, Loss, Network


def labels_loss(labels: Floats) -> Loss:
    """−log σ(s) of good replies (1) and −log σ(−s) of bad ones (0); gradient σ(s) − label."""

    def loss(scores: Floats) -> tuple[float, Floats]:
        value = np.logaddexp(0, -scores) * labels + np.logaddexp(0, scores) * (1 - labels)
        return float(value.mean()), ((sigmoid(scores) - labels) / len(scores)).astype(np.float32)

    return loss


def pairs_loss(scores: Floats) -> tuple[float, Floats]:
    """−log σ(s_better − s_worse), better sides first (Bradley & Terry 1952).

    Scores 1 and 0: −log σ(1) = .3133; gradient −σ(−1), +σ(−1) = −.2689, .2689.
    """
    margin = scores[: len(scores) // 2] - scores[len(scores) // 2 :]
    pull = (sigmoid(-margin) / len(margin)).astype(np.float32)
    return float(np.logaddexp(0, -margin).mean()), np.concatenate([-pull, pull])


def rewards_loss(rewards: Floats) -> Loss:
    """(σ(s) − reward)²; rewards lie in [0, 1]."""

    def loss(scores: Floats) -> tuple[float, Floats]:
        given = sigmoid(scores)
        miss = given - rewards
        return float((miss**2).mean()), (2 * miss * given * (1 - given) / len(scores)).astype(np.float32)

    return loss


def fit_labels(
    network: Network, bags: Bags, labels: NDArray[np.bool_], *, optimizer: Adam, epochs: int, batch: int, seed: int
) -> list[float]:
    """Teach good from bad; returns the mean loss of each epoch."""
    targets = labels.astype(np.float32)
    return _epochs(
        len(bags),
        lambda rows: network.gradients(bags.take(rows), labels_loss(targets[rows])),
        optimizer,
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def fit_pairs(
    network: Network, better: Bags, worse: Bags, *, optimizer: Adam, epochs: int, batch: int, seed: int
) -> list[float]:
    """Teach better from worse; returns the mean loss of each epoch."""
    return _epochs(
        len(better),
        lambda rows: network.gradients(better.take(rows).joined(worse.take(rows)), pairs_loss),
        optimizer,
        epochs=epochs,
        batch=batch,
        seed=seed,
    )


def _epochs(
    count: int,
    gradients: Callable[[NDArray[np.int64]], tuple[float, dict[str, Floats]]],
    optimizer: Adam,
    *,
    epochs: int,
    batch: int,
    seed: int,
) -> list[float]:
    random = np.random.default_rng(seed)
    means = []
    for _ in range(epochs):
        order = random.permutation(count)
        losses = []
        for start in range(0, count, batch):
            rows = order[start : start + batch]
            value, by_weight = gradients(rows)
            optimizer.step(by_weight)
            losses.append(value * len(rows))
        means.append(sum(losses) / count)
    return means


def sigmoid(scores: Floats) -> Floats:
    """1 / (1 + e^−s), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0, -scores)))
