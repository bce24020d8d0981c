"""Rows of a delimited file as text: the end of each row is found before its cells are parsed.

`csv.reader` forgets that it is inside a quoted cell once the cell is larger than its limit, and takes the rest of the
cell for rows. Here a quoted cell ends at its closing quote, however large it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, TextIO

from grpo.data_errors import LONGEST_LINE

_QUOTE = '"'
_TO_CLOSING_QUOTE = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # two quotes in a row belong to the cell
_PIECE = 2**20  # characters that are read at once

# States of the scanner. _CLOSED: after a quote in a quoted cell, so that a second quote belongs to the cell and any
# character but a delimiter is an error. _BROKEN: after such an error, until the end of the line.
_START, _PLAIN, _QUOTED, _CLOSED, _BROKEN = range(5)


class RowText(NamedTuple):
    """The text of one row."""

    line: int
    """Line of the file on which it begins."""
    text: str
    whole: bool
    """False if the row has more than 16 Mi characters. Then `text` holds only the first ones."""


def read_texts(file: TextIO, delimiter: str, first: int = 1, *, quoting: bool = True) -> Iterator[RowText]:
    """Split a file, opened with `newline=""` and read up to its line `first`, into rows. Blank lines are rows too.

        a,"two\nlines"\nb,c\n  →  'a,"two\nlines"\n', 'b,c\n'

    Without `quoting` each line is a row. Memory is bounded by one row of 16 Mi characters, because the rest of a longer
    row is skipped.
    """
    state, line = _START, first
    kept: list[str] = []
    size = 0
    for piece in iter(partial(file.readline, _PIECE), ""):
        if size <= LONGEST_LINE:
            kept.append(piece)
        size += len(piece)
        state = _scan(piece, state, delimiter) if quoting else _PLAIN
        if piece[-1] in "\r\n":
            line += 1
            if state != _QUOTED:
                yield RowText(first, "".join(kept), size <= LONGEST_LINE)
                state, first, kept, size = _START, line, [], 0
    if kept:
        yield RowText(first, "".join(kept), size <= LONGEST_LINE)


def _scan(text: str, state: int, delimiter: str) -> int:
    """State after a piece of a row."""
    if state <= _PLAIN and _QUOTE not in text:
        return _START if text[-1] == delimiter else _PLAIN
    position, end = 0, len(text)
    while position < end and state != _BROKEN:
        if state == _QUOTED:
            closed = _TO_CLOSING_QUOTE.match(text, position)
            if closed is None:
                return state
            state, position = _CLOSED, closed.end()
        elif state == _CLOSED:
            state, position = _after_quote(text[position], delimiter), position + 1
        elif state == _START and text[position] == _QUOTE:
            state, position = _QUOTED, position + 1
        else:
            next_cell = text.find(delimiter, position) + 1
            if not next_cell:
                return _PLAIN
            state, position = _START, next_cell
    return state


def _after_quote(character: str, delimiter: str) -> int:
    if character == _QUOTE:
        return _QUOTED
    if character == delimiter:
        return _START
    return _CLOSED if character in "\r\n" else _BROKEN
