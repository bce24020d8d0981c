"""From labelled data to a learned reward in a folder, measured on dialogues that it did not see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.rewards.learned.features import Bags, PromptedReply, bags
from grpo.rewards.learned.losses import fit_labels, fit_pairs
from grpo.rewards.learned.metrics import HeldOutMetric, auc, pair_accuracy
from grpo.rewards.learned.model_card import DataSource, ModelCard, write_network
from grpo.rewards.learned.network import Adam, Network
from grpo.scenarios.reward_data import LabelledReply, PreferencePair


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """Sizes of a network, and how long and how fast it is taught."""

    buckets: int = 1 << 16
    embedding_dim: int
    hidden_dim: int
    learning_rate: float
    epochs: int
    batch: int = 64
    weight_decay: float = 0.01


LABELS = TrainingRecipe(embedding_dim=4, hidden_dim=8, learning_rate=5e-3, epochs=3)
PAIRS = TrainingRecipe(embedding_dim=16, hidden_dim=16, learning_rate=1e-3, epochs=2)
"""Some 1,300 pairs are learned by heart in the third pass."""


def train_on_labels(
    trained: Sequence[LabelledReply],
    heldout: Sequence[LabelledReply],
    folder: Path,
    *,
    sources: Sequence[DataSource] = (),
    split: str,
    seed: int = 0,
    lesson: TrainingRecipe = LABELS,
) -> ModelCard:
    """Teach a network good from bad, write it to `folder`, and measure its AUC on `heldout`."""
    network, optimizer = _new(lesson, seed)
    fit_labels(
        network,
        _bags(trained, lesson.buckets),
        _good(trained),
        optimizer=optimizer,
        epochs=lesson.epochs,
        batch=lesson.batch,
        seed=seed,
    )
    measure = auc(network.scores(_bags(heldout, lesson.buckets)), _good(heldout))
    return write_network(folder, network, _card("labels", trained, measure, sources, split, seed))


def train_on_pairs(
    trained: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    folder: Path,
    *,
    sources: Sequence[DataSource] = (),
    split: str,
    seed: int = 0,
    lesson: TrainingRecipe = PAIRS,
) -> ModelCard:
    """Teach a network better from worse, write it to `folder`, and measure its pair accuracy on `heldout`."""
    network, optimizer = _new(lesson, seed)
    fit_pairs(
        network,
        *_sides(trained, lesson.buckets),
        optimizer=optimizer,
        epochs=lesson.epochs,
        batch=lesson.batch,
        seed=seed,
    )
    better, worse = _sides(heldout, lesson.buckets)
    measure = pair_accuracy(network.scores(better), network.scores(worse))
    return write_network(folder, network, _card("pairs", trained, measure, sources, split, seed))


def held_out_mask(groups: Sequence[str], *, parts: int = 5, part: int = 0) -> NDArray[np.bool_]:
    """Which examples are held out: those whose group's SHA-256 leaves the remainder `part` when divided by `parts`.

    Raises `DataError` when one side stays empty.
    """
    sides = {group: int(hashlib.sha256(group.encode()).hexdigest(), 16) % parts for group in set(groups)}
    heldout = np.array([sides[group] == part for group in groups], dtype=bool)
    if not heldout.any() or heldout.all():
        amount = "all" if heldout.any() else "none"
        raise DataError(f"of {len(sides)} groups {amount} would be held out; both sides need at least one: add others")
    return heldout


def _new(lesson: TrainingRecipe, seed: int) -> tuple[Network, Adam]:
    network = Network.new(
        buckets=lesson.buckets, embedding_dim=lesson.embedding_dim, hidden_dim=lesson.hidden_dim, seed=seed
    )
    return network, Adam(network, learning_rate=lesson.learning_rate, weight_decay=lesson.weight_decay)


def _bags(replies: Sequence[LabelledReply], buckets: int) -> Bags:
    return bags([PromptedReply(context=item.prompt, reply=item.reply) for item in replies], buckets=buckets)


def _good(replies: Sequence[LabelledReply]) -> NDArray[np.bool_]:
    """Which replies score above 1/2. Raises `DataError` for labels without order."""
    scores = [item.score for item in replies]
    if None in scores:
        raise DataError(
            f"reply {replies[scores.index(None)].id} has a label without a score; a reward learns from scores"
        )
    return np.array(scores) > 0.5


def _sides(pairs: Sequence[PreferencePair], buckets: int) -> tuple[Bags, Bags]:
    chosen = [PromptedReply(context=pair.prompt, reply=pair.chosen) for pair in pairs]
    rejected = [PromptedReply(context=pair.prompt, reply=pair.rejected) for pair in pairs]
    return bags(chosen, buckets=buckets), bags(rejected, buckets=buckets)


def _card(
    learned: str,
    trained: Sequence[LabelledReply | PreferencePair],
    measure: HeldOutMetric,
    sources: Sequence[DataSource],
    split: str,
    seed: int,
) -> ModelCard:
    return ModelCard.model_validate(
        {
            "learned": learned,
            "sources": tuple(sources),
            "split": split,
            "trained": len(trained),
            "heldout": measure,
            "seed": seed,
        }
    )
