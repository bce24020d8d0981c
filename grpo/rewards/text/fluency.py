"""Filter for degenerate replies (gibberish, repetition, copying, refusal). It multiplies every text reward.

Each check is 1 for ordinary prose and falls to 0. Only the lowest check counts.

    words        look like words, not like random keys
    grammar      function words between content words: a list of keywords has none
    variety      words and phrases do not repeat
    script       in the user's writing system
    original     not a copy of the user's words
    length       1 up to 100 words, then 100 / length
    not_refused  not a refusal to help
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
_ENGLISH = 0.15  # a text with at least this share of function words is taken for English
_GRAMMAR_FROM = 5  # words, because "Yes, it is." is too short to check
_REFUSED = 0.05
"""Value for a refusal: below a poor answer, above noise."""


@lru_cache(2048)
def fluency(reply: AgentReply) -> Mapping[str, float]:
    """Checks by name, see the module. All are 0 for an empty reply."""
    written = words(reply.text)
    if not written:
        return dict.fromkeys(("words", "grammar", "variety", "script", "original", "length", "not_refused"), 0.0)
    return {
        "words": clamp((sum(map(_looks_like_a_word, written)) / len(written) - 0.5) / 0.4),
        "grammar": _grammar(written, words(reply.user_text)),
        "variety": variety(written),
        "script": _script(reply),
        "original": _original(written, words(reply.user_text)),
        "length": min(1.0, MOST_WORDS / len(written)),
        "not_refused": _REFUSED if is_refusal(reply.text) else 1.0,
    }


def variety(text: tuple[str, ...]) -> float:
    """1 if nine in ten runs of three words are new, and two in five words. 0 for a text that repeats itself in full."""
    runs = ngrams(text, 3)
    phrases = clamp((len(set(runs)) / len(runs) - 0.5) / 0.4) if len(runs) > 3 else 1.0
    return min(phrases, clamp(len(set(text)) / (0.4 * min(len(text), 120))))


@lru_cache(1 << 16)
def _looks_like_a_word(word: str) -> bool:
    if not word.isascii() and unicodedata.name(word[0], "").split(" ")[0] != "LATIN":
        return True  # checked by `script`
    if word.isdigit() or any(character.isdigit() for character in word):
        return True
    readable = _LETTERS.fullmatch(word) is not None and _NOISE.search(word) is None
    return readable and (len(word) <= _ABBREVIATION or _VOWEL.search(word) is not None)


def _grammar(text: tuple[str, ...], asked: tuple[str, ...]) -> float:
    """Share of function words and longest run without one. 1 if the text is short or the user's text is not English."""
    if len(text) < _GRAMMAR_FROM or (len(asked) >= _GRAMMAR_FROM and _function_share(asked) < _ENGLISH):
        return 1.0
    share = _function_share(text)
    runs = [sum(1 for _ in run) for functional, run in groupby(text, FUNCTION_WORDS.__contains__) if not functional]
    return min(clamp(share / 0.25), clamp((0.95 - share) / 0.15), clamp(2 - max(runs, default=0) / 8))


def _function_share(text: tuple[str, ...]) -> float:
    return sum(word in FUNCTION_WORDS for word in text) / len(text)


def _script(reply: AgentReply) -> float:
    """Share of letters in a script that the user writes. It is 0 if half of the letters or fewer are."""
    if reply.text.isascii() and reply.user_text.isascii():
        return 1.0
    asked, replied = _scripts(reply.user_text), _scripts(reply.text)
    if not asked or not replied:
        return 1.0
    return clamp((sum(name in set(asked) for name in replied) / len(replied) - 0.5) / 0.4)


def _scripts(text: Iterable[str]) -> list[str]:
    return [_script_of(character) for character in text if character.isalpha()]


@lru_cache(1 << 14)
def _script_of(character: str) -> str:
    return unicodedata.name(character, "UNKNOWN").split(" ")[0]


def _original(text: tuple[str, ...], asked: tuple[str, ...]) -> float:
    """1 if at most half of all runs of four words are the user's, 0 if all are."""
    if not asked:
        return 1.0
    runs = ngrams(text, 4)
    if not runs:
        return float(text != asked)
    copied = set(ngrams(asked, 4))
    return clamp(2 * (1 - sum(run in copied for run in runs) / len(runs)))
