"""A small network that gives a reply a number: a wide part for what it has seen, a deep part for what is like it.

    score = wide · x + out · tanh(hidden · (embedding · x) + bias) + shift        x: the bag of a reply, see `ngrams`

Wide & deep (Cheng et al. 2016, arXiv 1606.07792), in NumPy: the same numbers on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from grpo.errors import ArtifactError
from grpo.rewards.learned.features import Bags

Floats = NDArray[np.float32]
Loss = Callable[[Floats], tuple[float, Floats]]
"""From scores [replies] to a mean loss and its gradient [replies]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The weights; training changes them in place."""

    wide: Floats  # [buckets]
    embedding: Floats  # [buckets, embedding_dim]
    hidden: Floats  # [embedding_dim, hidden_dim]
    bias: Floats  # [hidden_dim]
    out: Floats  # [hidden_dim]
    shift: Floats  # [1]

    @classmethod
    def new(cls, *, buckets: int, embedding_dim: int, hidden_dim: int, seed: int) -> Network:
        """Weights drawn by `seed`; every reply scores 0."""
        random = np.random.default_rng(seed)
        return cls(
            wide=np.zeros(buckets, np.float32),
            embedding=random.normal(0, embedding_dim**-0.5, (buckets, embedding_dim)).astype(np.float32),
            hidden=random.normal(0, embedding_dim**-0.5, (embedding_dim, hidden_dim)).astype(np.float32),
            bias=np.zeros(hidden_dim, np.float32),
            out=np.zeros(hidden_dim, np.float32),
            shift=np.zeros(1, np.float32),
        )

    @property
    def weights(self) -> dict[str, Floats]:
        """All weights by name; the arrays themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def require_shape_of(self, other: Network) -> None:
        """Raise `ArtifactError` unless both networks have weights of the same sizes."""
        ours, theirs = ([weight.shape for weight in network.weights.values()] for network in (self, other))
        if ours != theirs:
            raise ArtifactError(f"the stored network has weights of sizes {ours}, and {theirs} are needed")

    def scores(self, bags: Bags) -> Floats:
        """One number a reply [replies]."""
        return self._forward(bags)[0]

    def gradients(self, bags: Bags, loss: Loss) -> tuple[float, dict[str, Floats]]:
        """A loss of the scores of `bags`, and what it is by each weight; the embedding's only for the buckets seen."""
        scores, pooled, active = self._forward(bags)
        value, by_score = loss(scores)
        rows = bags.rows
        by_active = by_score[:, None] * self.out * (1 - active**2)
        by_pooled = by_active @ self.hidden.T
        by_wide = np.bincount(bags.buckets, bags.values * by_score[rows], minlength=len(self.wide))
        by_embedding = np.zeros_like(self.embedding)
        for column in range(self.embedding.shape[1]):
            weighted = bags.values * by_pooled[rows, column]
            by_embedding[:, column] = np.bincount(bags.buckets, weighted, minlength=len(self.wide))
        return value, {
            "wide": by_wide.astype(np.float32),
            "embedding": by_embedding,
            "hidden": pooled.T @ by_active,
            "bias": by_active.sum(axis=0),
            "out": active.T @ by_score,
            "shift": by_score.sum(keepdims=True),
        }

    def _forward(self, bags: Bags) -> tuple[Floats, Floats, Floats]:
        """Scores [replies], pooled embeddings [replies, embedding_dim], activations [replies, hidden_dim]."""
        starts = bags.starts[:-1]
        wide = np.add.reduceat(bags.values * self.wide[bags.buckets], starts)
        pooled = np.add.reduceat(bags.values[:, None] * self.embedding[bags.buckets], starts)
        active = np.tanh(pooled @ self.hidden + self.bias)
        return wide + active @ self.out + self.shift, pooled, active


class Adam:
    """Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019), in place."""

    def __init__(self, network: Network, *, learning_rate: float, weight_decay: float = 0.0) -> None:
        self.network = network
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.steps = 0
        self.first = {name: np.zeros_like(weight) for name, weight in network.weights.items()}
        self.second = {name: np.zeros_like(weight) for name, weight in network.weights.items()}

    def step(self, gradients: Mapping[str, Floats]) -> None:
        """Move every weight once."""
        self.steps += 1
        rate = self.learning_rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for name, weight in self.network.weights.items():
            first, second, gradient = self.first[name], self.second[name], gradients[name]
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            if name != "shift":
                weight *= 1 - self.learning_rate * self.weight_decay
            weight -= (rate * first / (np.sqrt(second) + 1e-8)).astype(np.float32)
