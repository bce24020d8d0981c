"""Rows of a delimited file as text: where each one ends, before anything is read into its cells.

`csv.reader` forgets that it is inside a quoted cell once the cell is larger than its limit, and takes the rest of the
cell for rows. Here a quoted cell ends at its closing quote, however large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TextIO

from grpo.scenarios.readers.files import LONGEST_LINE

_QUOTE = '"'
_PIECE = 2**20  # characters that are read at once


class _State(Enum):
    """Where a character stands, in the words of `csv`."""

    START = auto()
    """At the beginning of a cell."""
    PLAIN = auto()
    """In a cell without quotes around it."""
    QUOTED = auto()
    """In a cell with quotes around it."""
    CLOSED = auto()
    """Behind a quote in such a cell: a second one belongs to the cell, anything but a delimiter is a fault."""
    BROKEN = auto()
    """Behind such a fault; the row ends with its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowText:
    """The text of one row."""

    line: int
    """Line of the file on which it begins."""
    text: str
    whole: bool
    """False where the row has more than 16 Mi characters: `text` holds the first ones."""


def read_texts(file: TextIO, delimiter: str) -> Iterator[RowText]:
    """Split a file, opened with `newline=""`, into rows; blank lines are rows.

        a,"two\\nlines"\\nb,c\\n  →  'a,"two\\nlines"\\n', 'b,c\\n'

    Memory is bounded by one row of 16 Mi characters: of a longer one the rest is read and left out.
    """
    state, line, first = _State.START, 1, 1
    kept: list[str] = []
    size = 0
    for piece in iter(partial(file.readline, _PIECE), ""):
        if size <= LONGEST_LINE:
            kept.append(piece)
        size += len(piece)
        state = _scan(piece, state, delimiter)
        ended = piece.endswith(("\n", "\r"))
        line += ended
        if ended and state is not _State.QUOTED:
            yield RowText(line=first, text="".join(kept), whole=size <= LONGEST_LINE)
            state, first, kept, size = _State.START, line, [], 0
    if kept:
        yield RowText(line=first, text="".join(kept), whole=size <= LONGEST_LINE)


def _scan(text: str, state: _State, delimiter: str) -> _State:
    """State behind a piece of a row."""
    if state in (_State.START, _State.PLAIN) and _QUOTE not in text:
        return _State.START if text.endswith(delimiter) else _State.PLAIN
    position = 0
    while position < len(text) and state is not _State.BROKEN:
        if state is _State.QUOTED:
            closing = text.find(_QUOTE, position)
            if closing < 0:
                return state
            state, position = _State.CLOSED, closing + 1
        elif state is _State.CLOSED:
            state = _behind_quote(text[position], delimiter)
            position += 1
        elif state is _State.START and text[position] == _QUOTE:
            state, position = _State.QUOTED, position + 1
        else:
            next_cell = text.find(delimiter, position) + 1
            if not next_cell:
                return _State.PLAIN
            state, position = _State.START, next_cell
    return state


def _behind_quote(character: str, delimiter: str) -> _State:
    if character == _QUOTE:
        return _State.QUOTED
    if character == delimiter:
        return _State.START
    return _State.CLOSED if character in "\r\n" else _State.BROKEN
