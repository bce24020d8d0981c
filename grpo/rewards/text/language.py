"""Words, stems and sentences of a text. The word lists are English."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_SUFFIXES = ("ingly", "edly", "ing", "ied", "ies", "ed", "es", "ly", "s", "e", "y")
_MIN_STEM = 3
_CACHED = 4096  # texts, because several rewards read each of a group's replies and requests


def split_list(text: str) -> tuple[str, ...]:
    """Split a list that is written on several lines at its commas."""
    return tuple(" ".join(text.split()).split(", "))


FUNCTION_WORDS = frozenset(
    split_list(
        """a, about, after, again, all, also, am, an, and, any, are, aren't, as, at, be, because, been, before, being,
        both, but, by, can, can't, cannot, could, couldn't, did, didn't, do, does, doesn't, doing, don't, down,
        each, either, else, every, few, for, from, had, has, hasn't, have, haven't, he, her, here, hers, him,
        his, how, i, i'd, i'll, i'm, i've, if, in, into, is, isn't, it, it'll, it's, its, itself, just, let,
        let's, may, me, might, more, most, much, must, my, myself, neither, no, nor, not, now, of, off, on,
        once, one, only, onto, or, other, our, ours, out, over, own, per, shall, she, should, shouldn't, since,
        so, some, such, than, that, that's, the, their, them, then, there, there's, these, they, they'll,
        they're, they've, this, those, though, through, to, too, under, until, up, upon, us, very, was, wasn't,
        we, we'd, we'll, we're, we've, were, weren't, what, what's, when, where, which, while, who, whom, whose,
        why, will, with, within, without, won't, would, wouldn't, yes, yet, you, you'd, you'll, you're, you've,
        your, yours, yourself"""
    )
)
"""Function words. They are about half of the words of ordinary sentences, and none of a list of keywords."""

_PLEASANTRIES = frozenset(
    split_list(
        """hello, hey, hi, dear, thanks, thank, please, sorry, okay, ok, well, sure, good, great, nice, bye, goodbye,
        welcome, help, helping, helped, want, wants, wanted, need, needs, needed, like, know, get, got, gets,
        getting, got, give, go, going, make, made, thing, things, something, anything, really, still, even, way,
        try, trying, tried, tell, told, say, said, ask, asked, see, look, looking, happy, best, possible, day,
        today's, team, sir, madam, much, lot, bit, kind, feel, free"""
    )
)


@lru_cache(_CACHED)
def normalize(text: str) -> str:
    """Lower case with straight apostrophes, as patterns expect it."""
    return text.casefold().replace("’", "'")


@lru_cache(_CACHED)
def words(text: str) -> tuple[str, ...]:
    """Lower-case words and numbers of a text."""
    return tuple(_WORD.findall(normalize(text)))


@lru_cache(_CACHED)
def sentences(text: str) -> tuple[str, ...]:
    """Sentences and lines of a text."""
    return tuple(part for part in _SENTENCE.split(text.strip()) if part)


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """Common beginning of the forms of a word.

    arrive, arrives, arrived, arriving → arriv; ship, shipped → ship; battery, batteries → batter
    """
    word = word.removesuffix("'s")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            word = word.removesuffix(suffix)
            if suffix in ("ing", "ed") and len(word) > _MIN_STEM and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            if suffix in ("es", "s") and len(word) > _MIN_STEM and word[-1] in "ey":
                word = word[:-1]
            break
    return word


@lru_cache(_CACHED)
def content(text: str) -> frozenset[str]:
    """Stems of the content words: neither function words nor pleasantries."""
    return frozenset(
        stem(word)
        for word in words(text)
        if word not in FUNCTION_WORDS and word not in _PLEASANTRIES and (len(word) >= _MIN_STEM or word.isdigit())
    )


def ngrams(text: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Runs of `size` words, in order. Empty if the text is shorter."""
    return list(zip(*(text[start:] for start in range(size)), strict=False))


def clamp(value: float) -> float:
    """Cut to [0, 1]."""
    return min(1.0, max(0.0, value))
