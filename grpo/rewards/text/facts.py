"""Fact matching: a reply states a fact, leaves it out, or denies it."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from grpo.rewards.text.answers import final_answer, numbers, parse_quantity
from grpo.rewards.text.language import content, sentences

_ENOUGH = 0.6
"""Share of a fact's content words that one or two sentences need. It is below 1, because a reply may paraphrase."""
_NEGATION = re.compile(
    r"\b(?:not|never|no(?:ne|body|thing)?|neither|nor|without|cannot|false|untrue|wrong|incorrect)\b|n['’]t\b",
    re.IGNORECASE,
)
_CLAUSE = re.compile(r"[,;:]\s|[.!?]\s|\s(?:and|but|so|while|because)\s", re.IGNORECASE)


@lru_cache(4096)
def fact_score(fact: str, reply: str) -> float:
    """1 when the reply states the fact, less for part of its words, 0 when it denies it or gives other numbers.

    A fact that is a number is compared with the reply's final answer. Any other one is looked up in each sentence of
    the reply, and in each two neighbours: all its numbers, most of its words, and a denial only if it is one itself.

        fact "Refunds take 5 days"   "Your refund takes 5 days." → 1   "It doesn't take 5 days" → 0   "… 7 days" → 0
    """
    wanted = parse_quantity(fact)
    if wanted is not None:
        return float(final_answer(reply) == wanted)
    single = sentences(reply)
    passages = [*single, *(f"{first} {second}" for first, second in pairwise(single))]
    return max((_agreement(fact, passage) for passage in passages), default=0.0)


def _agreement(fact: str, passage: str) -> float:
    if not {*numbers(fact)} <= {*numbers(passage)} or _denies(fact, fact) != _denies(passage, fact):
        return 0.0
    wanted = {word for word in content(fact) if not word.isdigit()}
    if not wanted:
        return 1.0
    share = len(wanted & content(passage)) / len(wanted)
    return min(1.0, share / _ENOUGH) if share >= _ENOUGH / 2 else 0.0


def _denies(passage: str, fact: str) -> bool:
    """A clause about the fact has an odd number of negations."""
    about = content(fact)
    return any(len(_NEGATION.findall(clause)) % 2 for clause in _CLAUSE.split(passage) if content(clause) & about)
