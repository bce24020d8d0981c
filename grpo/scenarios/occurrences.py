"""Occurrences of known values in texts, in time that grows in proportion to the length of the texts.

A pattern of all values as alternatives would try each value at each character, so that a text with many values would
take time in the square of its length. Here each word of the text is looked up among the first words of the values.

    values   anna@example.org, anna, and of digits 4155550132
    text     Anna, write to ANNA@example.org or call (415) 555-0132.
             ────           ────────────────         ──────────────
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

_TOKEN = re.compile(r"\w+|\W")
_LONGEST = 320
"""Longest value that is looked up inside of texts. A longer value is only compared with whole texts."""
_LONGEST_NUMBER = 64
_PREFIX = 2
"""Largest number of the characters + and ( in front of a number."""
_GAP = 4
"""Largest number of separators between two digits or letters of a number: 415-555-0132, (415) 555 0132."""
_FOLDED = {ord("ı"): "i", ord("ſ"): "s"}


class Occurrence(NamedTuple):
    """Value in a text, `text[start:stop]`."""

    start: int
    stop: int
    value: str


class KnownValues:
    """Values that are searched as words, in any case.

    `texts` are folded values, which must occur with their own separators. `numbers` are compact values, which may occur
    with any separators.
    """

    def __init__(self, *, texts: Collection[str], numbers: Collection[str]) -> None:
        self._whole = {value for value in texts if len(value) > _LONGEST}
        self._whole_numbers = {value for value in numbers if len(value) > _LONGEST_NUMBER}
        self._texts = set(texts) - self._whole
        self._numbers = set(numbers) - self._whole_numbers
        self._lengths: dict[str, list[int]] = _lengths({value: _head(value) for value in self._texts})
        self._number_lengths: dict[str, list[int]] = _lengths({value: value[0] for value in self._numbers})

    def find_all(self, text: str) -> set[str]:
        """All values in a text, also those inside of others."""
        folded = fold(text)
        values = {occurrence.value for token in _TOKEN.finditer(folded) for occurrence in self._at(folded, token)}
        return values | {occurrence.value for occurrence in self._whole_text(folded)}

    def find(self, text: str) -> Iterator[Occurrence]:
        """Occurrences in a text without overlaps. The first one wins, and at the same place the longest value."""
        folded, end = fold(text), 0
        whole = self._whole_text(folded)
        if whole:
            yield whole[0]
            return
        for token in _TOKEN.finditer(folded):
            if token.start() >= end:
                occurrence = max(self._at(folded, token), key=lambda item: len(item.value), default=None)
                if occurrence is not None:
                    yield occurrence
                    end = occurrence.stop

    def _whole_text(self, folded: str) -> list[Occurrence]:
        if folded in self._whole:
            return [Occurrence(0, len(folded), folded)]
        if self._whole_numbers and (number := compact(folded)) in self._whole_numbers:
            return [Occurrence(0, len(folded), number)]
        return []

    def _at(self, folded: str, token: re.Match[str]) -> Iterator[Occurrence]:
        """Values that begin with this token."""
        start = token.start()
        if start and _is_word(folded[start - 1]):
            return
        for length in self._lengths.get(token[0], ()):
            stop = start + length
            if folded[start:stop] in self._texts and not _goes_on(folded, stop):
                yield Occurrence(start, stop, folded[start:stop])
        first = start  # of the number's letters and digits, after + and (
        while first < min(len(folded) - 1, start + _PREFIX) and folded[first] in "+(":
            first += 1
        lengths = self._number_lengths.get(folded[first])
        if lengths:
            stops = _number_stops(folded, first, lengths[0])
            letters = "".join(folded[stop - 1] for stop in stops)
            for length in lengths:
                if (
                    length <= len(stops)
                    and letters[:length] in self._numbers
                    and not _goes_on(folded, stops[length - 1])
                ):
                    yield Occurrence(start, stops[length - 1], letters[:length])


def fold(text: str) -> str:
    """Lower-case letters, one for each letter, e.g. `İ` becomes `i`, although `str.lower` makes two characters of
    it."""
    if text.isascii():
        return text.lower()
    return "".join(letter.lower()[0] for letter in text).translate(_FOLDED)


def compact(text: str) -> str:
    """Letters and digits without separators, folded."""
    return "".join(letter for letter in fold(text) if letter.isalnum())


def _lengths(heads: dict[str, str]) -> dict[str, list[int]]:
    """Distinct lengths of the values with each head, the longest first."""
    lengths: defaultdict[str, set[int]] = defaultdict(set)
    for value, head in heads.items():
        lengths[head].add(len(value))
    return {head: sorted(group, reverse=True) for head, group in lengths.items()}


def _head(value: str) -> str:
    match = _TOKEN.match(value)
    return match[0] if match else ""


def _number_stops(folded: str, start: int, length: int) -> list[int]:
    """Ends of the first letters and digits from `start`, which may have a few separators between them."""
    stops: list[int] = []
    for position in range(start, min(len(folded), start + length * (_GAP + 1))):
        if folded[position].isalnum():
            stops.append(position + 1)
            if len(stops) == length:
                break
        elif stops and position - stops[-1] >= _GAP:
            break
    return stops


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _goes_on(folded: str, stop: int) -> bool:
    return stop < len(folded) and _is_word(folded[stop])
