"""From labelled data to a learned reward in a folder, measured on dialogues that it did not see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from grpo.errors import DataError
from grpo.rewards.card import Card, Source, write_network
from grpo.rewards.fitting import fit_labels, fit_pairs
from grpo.rewards.measures import Measure, auc, pair_accuracy
from grpo.rewards.network import Adam, Network
from grpo.rewards.ngrams import Bags, Exchange, bags
from grpo.scenarios.judged import LabelledReply, PreferencePair

BUCKETS, EMBEDDING, HIDDEN = 1 << 16, 4, 8
LEARNING_RATE, WEIGHT_DECAY, BATCH, EPOCHS = 5e-3, 0.01, 64, 3
"""Chosen on folds of the training sides, one setting for all data sets; a fourth epoch gains nothing."""


def learn_labels(
    trained: Sequence[LabelledReply],
    heldout: Sequence[LabelledReply],
    folder: Path,
    *,
    sources: Sequence[Source] = (),
    split: str,
    seed: int = 0,
) -> Card:
    """Teach a network good from bad, write it to `folder`, and measure its AUC on `heldout`."""
    network = _new(seed)
    optimizer = Adam(network, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    fit_labels(network, _bags(trained), _good(trained), optimizer=optimizer, epochs=EPOCHS, batch=BATCH, seed=seed)
    measure = auc(network.scores(_bags(heldout)), _good(heldout))
    return write_network(folder, network, _card("labels", trained, measure, sources, split, seed))


def learn_pairs(
    trained: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
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


def apart(groups: Sequence[str], *, parts: int = 5, part: int = 0) -> NDArray[np.bool_]:
    """Which examples are held out: those whose group's SHA-256 leaves the remainder `part` when divided by `parts`.

    Raises `DataError` when one side stays empty.
    """
    sides = {group: int(hashlib.sha256(group.encode()).hexdigest(), 16) % parts for group in set(groups)}
    heldout = np.array([sides[group] == part for group in groups], dtype=bool)
    if not heldout.any() or heldout.all():
        amount = "all" if heldout.any() else "none"
        raise DataError(f"of {len(sides)} groups {amount} would be held out; both sides need at least one: add others")
    return heldout


def _new(seed: int) -> Network:
    return Network.new(buckets=BUCKETS, embedding_dim=EMBEDDING, hidden_dim=HIDDEN, seed=seed)


def _bags(replies: Sequence[LabelledReply]) -> Bags:
    return bags([Exchange(context=item.prompt, reply=item.reply) for item in replies], buckets=BUCKETS)


def _good(replies: Sequence[LabelledReply]) -> NDArray[np.bool_]:
    """Which replies score above 1/2. Raises `DataError` for labels without order."""
    scores = [item.score for item in replies]
    if None in scores:
        raise DataError(f"reply {replies[scores.index(None)].id} has a label without a score; a reward learns from scores")
    return np.array(scores) > 0.5


def _sides(pairs: Sequence[PreferencePair]) -> tuple[Bags, Bags]:
    chosen = [Exchange(context=pair.prompt, reply=pair.chosen) for pair in pairs]
    rejected = [Exchange(context=pair.prompt, reply=pair.rejected) for pair in pairs]
    return bags(chosen, buckets=BUCKETS), bags(rejected, buckets=BUCKETS)


def _card(
    learned: str,
    trained: Sequence[Labelled | PreferencePair],
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
