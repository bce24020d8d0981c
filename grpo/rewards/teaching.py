"""From labelled data to a learned reward in a folder, measured on dialogues that it did not see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.rewards.card import Card, Source, write_network
from grpo.rewards.fitting import fit_labels, fit_pairs
from grpo.rewards.measures import Measure, auc, pair_accuracy
from grpo.rewards.network import Adam, Network
from grpo.rewards.ngrams import Bags, Exchange, bags

BUCKETS, EMBEDDING, HIDDEN = 1 << 16, 4, 8
LEARNING_RATE, WEIGHT_DECAY, BATCH, EPOCHS = 5e-3, 0.01, 64, 3
"""Chosen on folds of the training sides, one setting for all data sets; a fourth epoch gains nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A reply that people called good or bad."""

    exchange: Exchange
    good: bool
    dialogue: str
    """What is held out together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two replies to the same context, the better one first."""

    better: Exchange
    worse: Exchange
    dialogue: str
    """What is held out together."""


def learn_labels(
    trained: Sequence[Labelled],
    heldout: Sequence[Labelled],
    folder: Path,
    *,
    sources: Sequence[Source] = (),
    split: str,
    seed: int = 0,
) -> Card:
    """Teach a network good from bad, write it to `folder`, and measure its AUC on `heldout`."""
    network = _new(seed)
    optimizer = Adam(network, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    seen = bags([example.exchange for example in trained], buckets=BUCKETS)
    labels = np.array([example.good for example in trained])
    fit_labels(network, seen, labels, optimizer=optimizer, epochs=EPOCHS, batch=BATCH, seed=seed)
    unseen = bags([example.exchange for example in heldout], buckets=BUCKETS)
    measure = auc(network.scores(unseen), [example.good for example in heldout])
    card = _card("labels", trained, measure, sources, split, seed)
    return write_network(folder, network, card)


def learn_pairs(
    trained: Sequence[Comparison],
    heldout: Sequence[Comparison],
    folder: Path,
    *,
    sources: Sequence[Source] = (),
    split: str,
    seed: int = 0,
) -> Card:
    """Teach a network better from worse, write it to `folder`, and measure its pair accuracy on `heldout`."""
    network = _new(seed)
    optimizer = Adam(network, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    fit_pairs(network, *_sides(trained), optimizer=optimizer, epochs=EPOCHS, batch=BATCH, seed=seed)
    better, worse = _sides(heldout)
    measure = pair_accuracy(network.scores(better), network.scores(worse))
    return write_network(folder, network, _card("pairs", trained, measure, sources, split, seed))


def apart(dialogues: Sequence[str], *, parts: int = 5, part: int = 0) -> NDArray[np.bool_]:
    """Which examples are held out: those whose dialogue's SHA-256 leaves the remainder `part` when divided by `parts`.

    Raises `DataError` when one side stays empty.
    """
    sides = {dialogue: int(hashlib.sha256(dialogue.encode()).hexdigest(), 16) % parts for dialogue in set(dialogues)}
    heldout = np.array([sides[dialogue] == part for dialogue in dialogues], dtype=bool)
    if not heldout.any() or heldout.all():
        raise DataError(
            f"of {len(sides)} dialogues {'all' if heldout.all() else 'none'} would be held out; both sides need at least one"
        )
    return heldout


def _new(seed: int) -> Network:
    return Network.new(buckets=BUCKETS, embedding_dim=EMBEDDING, hidden_dim=HIDDEN, seed=seed)


def _sides(pairs: Sequence[Comparison]) -> tuple[Bags, Bags]:
    better, worse = ([getattr(pair, side) for pair in pairs] for side in ("better", "worse"))
    return bags(better, buckets=BUCKETS), bags(worse, buckets=BUCKETS)


def _card(
    learned: str,
    trained: Sequence[Labelled | Comparison],
    measure: Measure,
    sources: Sequence[Source],
    split: str,
    seed: int,
) -> Card:
    return Card.model_validate(
        {
            "learned": learned,
            "sources": tuple(sources),
            "split": split,
            "trained": len(trained),
            "heldout": measure,
            "seed": seed,
        }
    )
