"""Whether a reply is prose that answers somebody, and not noise: nothing is earned without it.

Each part is 1 for what people write and falls to 0; the least of them counts.

    words      look like words, not like keys hit at random
    grammar    held together by function words: a list of keywords is not
    variety    words and phrases do not come again and again
    script     in the writing of the customer
    own        not a copy of what the customer said
    measure    of a length that is read: full up to 100 words, then as 100 / length
    helping    not a refusal to help
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby

from grpo.rewards.text.language import FUNCTION_WORDS, clamp, ngrams, words
from grpo.rewards.text.refusals import is_refusal
from grpo.rewards.text.reply import AgentReply

MOST_WORDS = 100
_LETTERS = re.compile(r"[a-zß-öø-ÿ'-]{1,20}")
_NOISE = re.compile(r"(.)\1\1|[bcdfghjklmnpqrstvwxz]{6}")
_VOWEL = re.compile(r"[aeiouyß-öø-ÿ]")
_ABBREVIATION = 4  # letters: usb, html
_ENGLISH = 0.15  # share of function words from which a text is taken for English
_JUDGED_FROM = 5  # words; "Yes, it is." has no grammar to speak of
_REFUSED = 0.05
"""Left to a reply that declines: below what a poor answer earns, above noise."""


@lru_cache(2048)
def prose(exchange: AgentReply) -> Mapping[str, float]:
    """The parts, by name; all 0 for an empty reply."""
    said = words(exchange.reply)
    if not said:
        return dict.fromkeys(("words", "grammar", "variety", "script", "own", "measure", "helping"), 0.0)
    return {
        "words": clamp((sum(map(_looks_like_a_word, said)) / len(said) - 0.5) / 0.4),
        "grammar": _grammar(said, words(exchange.said)),
        "variety": variety(said),
        "script": _script(exchange),
        "own": _own(said, words(exchange.said)),
        "measure": min(1.0, MOST_WORDS / len(said)),
        "helping": _REFUSED if is_refusal(exchange.reply) else 1.0,
    }


def variety(said: tuple[str, ...]) -> float:
    """Full while nine in ten runs of three words are new and two in five words; a text said twice has none."""
    runs = ngrams(said, 3)
    phrases = clamp((len(set(runs)) / len(runs) - 0.5) / 0.4) if len(runs) > 3 else 1.0
    return min(phrases, clamp(len(set(said)) / (0.4 * min(len(said), 120))))


@lru_cache(1 << 16)
def _looks_like_a_word(word: str) -> bool:
    if not word.isascii() and unicodedata.name(word[0], "").split(" ")[0] != "LATIN":
        return True  # other writings are judged by `script`
    if word.isdigit() or any(character.isdigit() for character in word):
        return True
    readable = _LETTERS.fullmatch(word) is not None and _NOISE.search(word) is None
    return readable and (len(word) <= _ABBREVIATION or _VOWEL.search(word) is not None)


def _grammar(said: tuple[str, ...], asked: tuple[str, ...]) -> float:
    """By the share of function words, and the longest run without one; not judged where the customer has none."""
    if len(said) < _JUDGED_FROM or (len(asked) >= _JUDGED_FROM and _function_share(asked) < _ENGLISH):
        return 1.0
    share = _function_share(said)
    runs = [sum(1 for _ in run) for held, run in groupby(said, FUNCTION_WORDS.__contains__) if not held]
    return min(clamp(share / 0.25), clamp((0.95 - share) / 0.15), clamp(2 - max(runs, default=0) / 8))


def _function_share(said: tuple[str, ...]) -> float:
    return sum(word in FUNCTION_WORDS for word in said) / len(said)


def _script(exchange: AgentReply) -> float:
    """Share of letters in a writing that the customer uses, 0 at a half."""
    if exchange.reply.isascii() and exchange.said.isascii():
        return 1.0
    asked, replied = _scripts(exchange.said), _scripts(exchange.reply)
    if not asked or not replied:
        return 1.0
    return clamp((sum(name in set(asked) for name in replied) / len(replied) - 0.5) / 0.4)


def _scripts(text: Iterable[str]) -> list[str]:
    return [_script_of(character) for character in text if character.isalpha()]


@lru_cache(1 << 14)
def _script_of(character: str) -> str:
    return unicodedata.name(character, "UNKNOWN").split(" ")[0]


def _own(said: tuple[str, ...], asked: tuple[str, ...]) -> float:
    """Full while at most half of all runs of four words are the customer's, 0 where all are."""
    if not asked:
        return 1.0
    runs = ngrams(said, 4)
    if not runs:
        return float(said != asked)
    copied = set(ngrams(asked, 4))
    return clamp(2 * (1 - sum(run in copied for run in runs) / len(runs)))
