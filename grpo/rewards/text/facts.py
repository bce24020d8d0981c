"""Whether a reply tells a fact, or denies it."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from grpo.rewards.text.answers import final_answer, numbers, parse_quantity
from grpo.rewards.text.language import content, sentences

_ENOUGH = 0.6
"""Share of a fact's content words that one or two sentences need; a reply says things in its own words."""
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nobody|nothing|neither|nor|without|cannot|false|untrue|wrong|incorrect)\b|n['’]t\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;:]\s|[.!?]\s|\s(?:and|but|so|while|because)\s", re.IGNORECASE)


@lru_cache(4096)
def fact_score(fact: str, reply: str) -> float:
    """1 when the reply tells the fact, part of it for part of its words, 0 when it denies it or gives other numbers.

    A fact that is a number is compared with the reply's final answer. Any other one must stand in a sentence of the
    reply, or in two that follow each other: all its numbers, most of its words, and no denial in a clause about it,
    unless it is a denial itself.

        fact "Refunds take 5 days"   "Your refund takes 5 days." → 1   "It doesn't take 5 days" → 0   "… 7 days" → 0
    """
    wanted = parse_quantity(fact)
    if wanted is not None:
        return float(final_answer(reply) == wanted)
    said = sentences(reply)
    places = [*said, *(f"{first} {second}" for first, second in pairwise(said))]
    return max((_agreement(fact, place) for place in places), default=0.0)


def _agreement(fact: str, place: str) -> float:
    if not {*numbers(fact)} <= {*numbers(place)} or _denies(fact, fact) != _denies(place, fact):
        return 0.0
    wanted = {word for word in content(fact) if not word.isdigit()}
    if not wanted:
        return 1.0
    share = len(wanted & content(place)) / len(wanted)
    return min(1.0, share / _ENOUGH) if share >= _ENOUGH / 2 else 0.0


def _denies(place: str, fact: str) -> bool:
    """Whether a clause that speaks of the fact is denied; twice is not at all."""
    about = content(fact)
    return any(len(_NEGATION.findall(clause)) % 2 for clause in _CLAUSE.split(place) if content(clause) & about)
