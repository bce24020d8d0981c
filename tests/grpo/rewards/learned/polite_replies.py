"""Made-up conversations whose good replies hold a polite word, and whose bad ones hold a rude word."""

from __future__ import annotations

import numpy as np

from grpo.messages import Message, Role
from grpo.scenarios.reward_data import PreferencePair

POLITE, RUDE = ("gladly", "please", "welcome"), ("whatever", "nonsense", "bother")
FILLER = "the order ship item today number soon look list"


def message(role: Role, text: str) -> Message:
    return Message(role=role, content=text)


def reply(seed: int, *, polite: bool) -> str:
    random = np.random.default_rng(seed)
    words = [*random.choice(FILLER.split(), 6), random.choice(POLITE if polite else RUDE)]
    return " ".join(random.permutation(words))


def conversation(seed: int, *, polite: bool) -> list[Message]:
    return [message("user", "where is my order"), message("assistant", reply(seed, polite=polite))]


def preferences(count: int, *, by_lot: bool = False) -> list[PreferencePair]:
    """Pairs whose better side is polite, or is drawn at random."""
    pairs = []
    for index in range(count):
        swapped = by_lot and np.random.default_rng(index).random() < 0.5
        sides = [message("assistant", reply(2 * index + side, polite=(side == 0) != swapped)) for side in (0, 1)]
        prompt = (message("user", "where is my order"),)
        pairs.append(
            PreferencePair(
                id=f"p{index}", group=f"g{index}", prompt=prompt, chosen=sides[0], rejected=sides[1],
                category="c", source="made up", licence="none",
            )
        )  # fmt: skip
    return pairs
