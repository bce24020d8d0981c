"""Training of a learned reward on labelled replies or preference pairs, with a metric on held-out dialogues."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from grpo.errors import DataError
from grpo.rewards.learned.features import PromptedReply, hash_features
from grpo.rewards.learned.metrics import auc, pair_accuracy
from grpo.rewards.learned.model_card import DataSource, ModelCard
from grpo.rewards.learned.network import Network, gradient_step, pair_loss, write_network
from grpo.scenarios.reward_data import LabelledReply, PreferencePair


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """Sizes of a network and hyperparameters of its training."""

    buckets: int = 1 << 16
    embedding_dim: int
    hidden_dim: int
    learning_rate: float
    epochs: int
    batch: int = 64
    weight_decay: float = 0.01


LABELS = TrainingRecipe(embedding_dim=4, hidden_dim=8, learning_rate=5e-3, epochs=3)
PAIRS = TrainingRecipe(embedding_dim=16, hidden_dim=16, learning_rate=1e-3, epochs=2)
"""A third epoch overfits some 1,300 pairs."""


def train_on_labels(
    trained: Sequence[LabelledReply],
    heldout: Sequence[LabelledReply],
    folder: Path,
    *,
    sources: Sequence[DataSource] = (),
    split: str,
    seed: int = 0,
    recipe: TrainingRecipe = LABELS,
) -> ModelCard:
    """Train a network on good and bad replies, write it to `folder`, and measure its AUC on `heldout`."""
    features, targets = _features(trained, recipe.buckets), torch.from_numpy(_good(trained).astype(np.float32))

    def loss(network: Network, rows: NDArray[np.int64]) -> Tensor:
        return binary_cross_entropy_with_logits(network(features[rows]), targets[torch.from_numpy(rows)])

    network = _fit(loss, len(trained), recipe, seed)
    metric = auc(network.scores(_features(heldout, recipe.buckets)), _good(heldout))
    card = ModelCard(
        learned="labels", sources=tuple(sources), split=split, trained=len(trained), heldout=metric, seed=seed
    )
    return write_network(folder, network, card)


def train_on_pairs(
    trained: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    folder: Path,
    *,
    sources: Sequence[DataSource] = (),
    split: str,
    seed: int = 0,
    recipe: TrainingRecipe = PAIRS,
) -> ModelCard:
    """Train a network on preference pairs, write it to `folder`, and measure its pair accuracy on `heldout`."""
    chosen, rejected = _pair_features(trained, recipe.buckets)

    def loss(network: Network, rows: NDArray[np.int64]) -> Tensor:
        return pair_loss(network(chosen[rows]), network(rejected[rows]))

    network = _fit(loss, len(trained), recipe, seed)
    better, worse = _pair_features(heldout, recipe.buckets)
    metric = pair_accuracy(network.scores(better), network.scores(worse))
    card = ModelCard(
        learned="pairs", sources=tuple(sources), split=split, trained=len(trained), heldout=metric, seed=seed
    )
    return write_network(folder, network, card)


def held_out_mask(groups: Sequence[str], *, parts: int = 5, part: int = 0) -> NDArray[np.bool_]:
    """True for held-out examples. An example is held out if its group's SHA-256 is `part` modulo `parts`.

    Raises `DataError` if one side stays empty.
    """
    sides = {group: int(hashlib.sha256(group.encode()).hexdigest(), 16) % parts for group in set(groups)}
    heldout = np.array([sides[group] == part for group in groups], dtype=bool)
    if not heldout.any() or heldout.all():
        amount = "all" if heldout.any() else "none"
        raise DataError(
            f"of {len(sides)} groups {amount} would be held out. Training and held-out part need at least one group "
            "each: add groups"
        )
    return heldout


def _fit(
    loss: Callable[[Network, NDArray[np.int64]], Tensor], count: int, recipe: TrainingRecipe, seed: int
) -> Network:
    """Train a new network on shuffled minibatches of `count` examples."""
    network = Network(
        buckets=recipe.buckets, embedding_dim=recipe.embedding_dim, hidden_dim=recipe.hidden_dim, seed=seed
    )
    optimizer = network.adamw(learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay)
    random = np.random.default_rng(seed)
    for _ in range(recipe.epochs):
        order = random.permutation(count)
        for start in range(0, count, recipe.batch):
            gradient_step(optimizer, loss(network, order[start : start + recipe.batch]))
    return network


def _features(replies: Sequence[LabelledReply], buckets: int) -> csr_matrix:
    return hash_features([PromptedReply(prompt=item.prompt, reply=item.reply) for item in replies], buckets=buckets)


def _good(replies: Sequence[LabelledReply]) -> NDArray[np.bool_]:
    """True for replies that score above 1/2. Raises `DataError` for labels without a score."""
    scores = [item.score for item in replies]
    if None in scores:
        raise DataError(
            f"reply {replies[scores.index(None)].id} has a label without a score. A reward learns from scores"
        )
    return np.array(scores) > 0.5


def _pair_features(pairs: Sequence[PreferencePair], buckets: int) -> tuple[csr_matrix, csr_matrix]:
    chosen = [PromptedReply(prompt=pair.prompt, reply=pair.chosen) for pair in pairs]
    rejected = [PromptedReply(prompt=pair.prompt, reply=pair.rejected) for pair in pairs]
    return hash_features(chosen, buckets=buckets), hash_features(rejected, buckets=buckets)
