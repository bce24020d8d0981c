"""Ends of constrained replies, so that a limit of tokens does not cut them off.

A model that has not learned JSON may write a string without an end, and a reply that is cut off cannot be parsed. So
when few tokens are left, only those tokens are allowed after which the reply can still be completed:

    {"name": "Ann", "notes": "late, because the   ►   "}            the tokens after ► close what is open
    {"name": "                                    ►   ", "age": 34}   the model still chooses what is required

How many tokens an end needs is found by trial on a copy of the matcher, see `ReplyEnds.tokens`. The work of the whole
batch is bounded by the caller, see `grpo.policy.transformers.sampling.token_masks`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NEAR = 64
"""Spare tokens of a turn below which tokens are excluded: the tokens that it has left, without the tokens of an end."""
_LAST = 8
"""Spare tokens below which texts and lists are closed at once."""
_FEW = 64
"""Number of allowed tokens up to which each of them is tried. In most states outside of texts there are fewer."""
_LONGEST = 512
"""Tokens of the longest end that is searched for."""
_CPU_S = 0.02
"""Longest time of one search, because clients send the grammars. Most take less than 1 ms."""
_QUOTE, _BRACKETS = '"', ("}", "]")
_OTHERS = (",", "@", ":", "/", "1", "0", "T", "Z", ".", "-")
"""Characters that lead to an end if nothing closes, such as those that the formats of dates and addresses ask for."""
_IN_TEXTS = (",", "@", "1", ".", "0", "2", "3", ":", "/", "-", "a", "A")
"""The same in a text in which any character may stand, if the others lead to no end. Each step begins with another
one, because a pattern such as `.+@.+` or `[0-9]{3}` allows the first one without an end."""


class ReplyEnds:
    """Ends of the replies of a vocabulary."""

    def __init__(self, vocabulary: LLTokenizer) -> None:
        self._vocabulary = vocabulary
        ends = set(vocabulary.eos_tokens)
        self._controls = [
            id_ for id_ in range(vocabulary.vocab_size) if vocabulary.is_special_token(id_) and id_ not in ends
        ]
        texts = ("{", _QUOTE, *_BRACKETS, *_OTHERS, *_IN_TEXTS)
        self._ids = {text: id_ for text in texts if (id_ := self._token(text)) is not None}
        self._beyond_text = [id_ for id_ in range(vocabulary.vocab_size) if b'"' in vocabulary.decode_bytes([id_])[:-1]]
        """Tokens that end a text and go on behind it, e.g. with the name of another property."""

    def narrow(
        self, matcher: LLMatcher, excluded: NDArray[np.bool_], end: Sequence[int], *, left: int, cpu_s: float
    ) -> bool:
        """Exclude tokens after which a reply could not be completed with the number of tokens `left`, in place.

        `excluded` is True for each token that the grammar does not allow, and `end` completes the reply, see `tokens`.
        If trying the allowed tokens takes longer than `cpu_s`, only the next token of the end is left. Returns True if
        the reply is shortened by it.
        """
        mask = np.packbits(~excluded, bitorder="little").tobytes()
        is_last, is_text = left - len(end) <= _LAST, self._is_text(mask)
        if is_last and (closing := self._closing(mask)) is not None:
            return keep(excluded, closing)
        allowed = np.flatnonzero(~excluded)
        if is_last and (is_text or len(allowed) > _FEW):  # a text with the format of an address, for example
            return keep(excluded, end[0])
        if is_text:
            excluded[self._beyond_text] = True
        if is_text or len(allowed) > _FEW:
            return False
        stop, kept = time.thread_time() + min(_CPU_S, cpu_s), list[int]()
        for id_ in allowed.tolist():
            if time.thread_time() >= stop:
                return keep(excluded, end[0])
            if self._ends_after(matcher, id_, end, left - 1):
                kept.append(id_)
        return len(kept) < len(allowed) and keep(excluded, *(kept or end[:1]))

    def _ends_after(self, matcher: LLMatcher, token: int, end: Sequence[int], left: int) -> bool:
        """True if the reply can be completed after a token.

        The rest of the known end is tried first, because it often fits after another value, e.g. of an enum, and to
        read it takes a tenth of the time of a search.
        """
        trial = matcher.deep_copy()
        if not trial.consume_token(token):
            return False
        rest = trial.deep_copy()
        if rest.consume_tokens(list(end[1:])) and rest.is_accepting():
            return True
        return self.tokens(trial, at_most=left) is not None

    def _closing(self, mask: bytes) -> int | None:
        """Token that closes a text, a list, an object or a part of the chat format. None if nothing can close here."""
        closing = (_QUOTE,) if self._is_text(mask) else _BRACKETS
        return _first(mask, itertools.chain(self._controls, self._known(closing)))

    def tokens(self, matcher: LLMatcher, *, at_most: int) -> list[int] | None:
        """Tokens that complete the reply, without the end of the turn. None if `at_most` or 20 ms are not enough.

        In each state the first of these is taken that the grammar allows: what closes something, a quotation mark,
        another character of `_OTHERS` or `_IN_TEXTS`, text that is forced, and any token. There may be a shorter end.
        None is found for a pattern that asks for a certain word, e.g. `END$`.
        """
        longest = min(at_most, _LONGEST)
        ends = (self._search(matcher, longest, rotates=rotates) for rotates in (False, True))
        return next((end for end in ends if end is not None), None)

    def _search(self, matcher: LLMatcher, longest: int, *, rotates: bool) -> list[int] | None:
        """Tokens of an end, at most `longest`. None if there is none, or if it takes too long to find it."""
        trial = matcher.deep_copy()
        tokens: list[int] = []
        stop = time.thread_time() + _CPU_S
        while not trial.is_error() and time.thread_time() < stop:
            if trial.is_accepting():
                return tokens
            step = self._step(trial, len(tokens) % len(_IN_TEXTS) if rotates else None)
            if not step or len(tokens) + len(step) > longest or not trial.consume_tokens(step):
                return None
            tokens += step
        return None

    def _step(self, matcher: LLMatcher, first: int | None) -> list[int]:
        """Next tokens of an end. Empty if the grammar allows none. In a text, others are tried from `first` on."""
        mask = matcher.compute_bitmask()
        if (next_id := self._closing(mask)) is None:
            others: tuple[str, ...] = _OTHERS
            if first is not None and self._is_text(mask):
                others = (*_IN_TEXTS[first:], *_IN_TEXTS[:first])
            next_id = _first(mask, self._known((_QUOTE, *others)))
        if next_id is not None:
            return [next_id]
        if forced := matcher.compute_ff_bytes():
            ids = self._vocabulary.tokenize_bytes(forced)
            if count := matcher.validate_tokens(ids):
                return list(ids[:count])
        any_id = _first(mask, range(8 * len(mask)))
        return [] if any_id is None else [any_id]

    def _is_text(self, mask: bytes) -> bool:
        """True inside of a JSON string, because only there both brackets of an object are allowed."""
        return all(text in self._ids and _allows(mask, self._ids[text]) for text in "{}")

    def _known(self, texts: Sequence[str]) -> Iterator[int]:
        return (self._ids[text] for text in texts if text in self._ids)

    def _token(self, text: str) -> int | None:
        """Id of the token that is this text. None if the vocabulary has none."""
        ids = self._vocabulary.tokenize_bytes(text.encode())
        return int(ids[0]) if len(ids) == 1 and self._vocabulary.decode_bytes(ids) == text.encode() else None


def keep(excluded: NDArray[np.bool_], *tokens: int) -> bool:
    """Exclude all other tokens, in place. Returns True."""
    excluded[:] = True
    excluded[list(tokens)] = False
    return True


def _allows(mask: bytes, id_: int) -> bool:
    return bool(mask[id_ >> 3] >> (id_ & 7) & 1)


def _first(mask: bytes, ids: Iterable[int]) -> int | None:
    """First of the tokens that a mask allows."""
    return next((id_ for id_ in ids if _allows(mask, id_)), None)
