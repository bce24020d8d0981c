"""Generator of support-desk scenarios from a phrasebook.

Two phrasebooks share no name, item, wording or order number: one for the demonstrations of the base model, one for the
scenarios of training and evaluation.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.config.base import Settings
from grpo.config.loading import load_settings
from grpo.environments.support_desk.desk import REPLACE_BELOW, RETURN_DAYS
from grpo.scenario import Difficulty, Expected, Metadata, Scenario

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo", "ie")
_CODAS = ("", "", "n", "r", "t", "k", "s", "ll", "nd", "ck", "er", "le")
CATEGORIES = ("return", "broken", "missing", "charge")
_NUMBERS = tuple(n for n in range(1000, 10000) if len(set(str(n))) == 4)
"""Order numbers of four different digits: a tiny model can copy them."""


class Phrasebook(Settings):
    """Templates of customer messages: frames around complaints, and sentences with the order number.

    In a sentence `[a|b|c]` is replaced by one of a, b and c.
    """

    order_numbers: tuple[float, float]
    """Share of a fixed shuffle of all order numbers that this book uses, as [from, to)."""
    invented_share: float = 0.0
    """Share of names and items that are invented words, so that a model learns to handle unknown ones."""
    difficulties: tuple[Difficulty, ...]
    """Difficulties, in turn."""
    transit_days: tuple[int, ...]
    """Days until a parcel in transit arrives."""
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    items: tuple[str, ...]
    frames: tuple[str, ...]
    """Opening sentences, with {name} and {complaint}."""
    complaints: dict[str, tuple[str, ...]]
    """Complaints by category, with {item}."""
    numbers: tuple[str, ...]
    """Sentences with the order number, {order}."""
    corrections: tuple[str, ...]
    """Sentences that correct a wrong order number."""
    asides: tuple[str, ...] = ("",)
    """Filler around an order number, so that it has no fixed position."""

    @classmethod
    def load(cls, path: Path) -> Phrasebook:
        """Read a phrasebook from YAML."""
        return load_settings(path, cls)

    def orders(self) -> list[str]:
        """Order numbers of this book."""
        numbers = list(_NUMBERS)
        random.Random(0).shuffle(numbers)
        start, stop = (int(share * len(numbers)) for share in self.order_numbers)
        return [str(number) for number in numbers[start:stop]]


def generate_scenarios(book: Phrasebook, *, seed: int, prefix: str) -> Iterator[Scenario]:
    """Generate an endless stream of scenarios: categories and difficulties in turn, both sides of each rule evenly."""
    rng = random.Random(seed)
    orders = book.orders()
    index = 0
    while True:
        category = CATEGORIES[index % len(CATEGORIES)]
        difficulty = book.difficulties[index // len(CATEGORIES) % len(book.difficulties)]
        yield _scenario(book, rng, orders, f"{prefix}-{index:05d}", category, difficulty)
        index += 1


def _scenario(
    book: Phrasebook, rng: random.Random, orders: list[str], scenario_id: str, category: str, difficulty: Difficulty
) -> Scenario:
    order, wrong = rng.sample(orders, 2)
    record, calls, facts = _situation(book, rng, order, category)

    def word(words: tuple[str, ...]) -> str:
        return _invent(rng, like=words[0]) if rng.random() < book.invented_share else rng.choice(words)

    complaint = choose_alternatives(rng.choice(book.complaints[category]), rng).format(item=word(book.items))
    name = f"{word(book.first_names)} {word(book.last_names)}"
    opening = choose_alternatives(rng.choice(book.frames), rng).format(name=name, complaint=complaint)

    def give(sentences: tuple[str, ...], number: str) -> str:
        words = (
            rng.choice(book.asides),
            choose_alternatives(rng.choice(sentences), rng).format(order=number),
            rng.choice(book.asides),
        )
        return " ".join(word for word in words if word)

    lines = {
        "easy": [f"{opening} {give(book.numbers, order)}"],
        "medium": [opening, give(book.numbers, order)],
        "hard": [f"{opening} {give(book.numbers, wrong)}", give(book.corrections, order)],
    }[difficulty]
    return Scenario(
        id=scenario_id,
        topic=category,
        domain="customer_service",
        user_responses=tuple(lines),
        world={"orders": {order: record}},
        expected=Expected(calls=tuple(calls), facts=tuple(facts)),
        metadata=Metadata(difficulty=difficulty, category=category, source="support_desk", licence="Apache-2.0"),
    )


def choose_alternatives(sentence: str, rng: random.Random) -> str:
    """Choose one alternative of each `[a|b|c]`."""
    return _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), sentence)


def expand_alternatives(sentence: str) -> Iterator[str]:
    """All expansions of a sentence with `[a|b|c]`."""
    parts = _CHOICE.split(sentence)  # text, alternatives, text, …
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


def _invent(rng: random.Random, *, like: str) -> str:
    """Invented word of one to four syllables, capitalized as `like` is."""
    syllables = (rng.choice("bcdfghjklmnprstvwz") + rng.choice(_VOWELS) for _ in range(rng.randint(1, 4)))
    invented = "".join(syllables) + rng.choice(_CODAS)
    return invented.capitalize() if like[0].isupper() else invented


def _situation(
    book: Phrasebook, rng: random.Random, order: str, category: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Record, its right calls, and the facts that must be communicated."""
    favourable = rng.random() < 0.5
    record: dict[str, Any] = {
        "price": rng.randint(10, 250),
        "days": rng.randint(1, 60),
        "state": "delivered",
        "charges": 1,
    }

    def call(name: str, **arguments: Any) -> list[dict[str, Any]]:
        return [{"name": name, "arguments": {"order": order, **arguments}}]

    if category == "return":
        record["days"] = rng.randint(1, RETURN_DAYS) if favourable else rng.randint(RETURN_DAYS + 1, 99)
        refund = call("refund", amount=record["price"])
        return (record, refund, []) if favourable else (record, [], ["thirty days"])
    if category == "broken":
        record["price"] = rng.randint(10, REPLACE_BELOW - 1) if favourable else rng.randint(REPLACE_BELOW, 250)
        return record, call("replace" if favourable else "escalate"), []
    if category == "missing":
        record["state"] = "lost" if favourable else "moving"
        if favourable:
            return record, call("refund", amount=record["price"]), []
        record["eta"] = rng.choice(book.transit_days)
        return record, [], [f"{record['eta']} days"]
    record["charges"] = 2 if favourable else 1
    return (record, call("refund", amount=record["price"]), []) if favourable else (record, [], ["once"])
