"""Sizes of the values in a chat template, and what one rendering may spend.

A time limit interrupts a template between two Python instructions, but not inside `9 ** 9 ** 10` or `"x" * 2**31`. So
each operation of a template is bounded before it runs, and all values that a rendering makes are counted together.

A size counts a value as often as it is contained, because printing, comparing and hashing read it as often:
`[x, x]` is twice as large as `x`. It is at least the memory of the value in bytes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

PART = 64
"""Size of an entry of a list, and of a key or a value of a dictionary, without the size of what it is."""
LONGEST = 2**22
"""Size of the largest value in a rendering of a short conversation."""
OUTPUT = 2**17
"""Characters of the longest rendering of a short conversation. The published templates print up to 10,000."""
PER_CHARACTER = 64
"""Further size of a value, and further characters of the rendering, per character of the messages and tools."""
SPENT = 2**28
"""Sum of the sizes of all values that a rendering makes. A template that builds a list or text of the whole
conversation makes a longer one for each message, so that each message adds `SPENT_MESSAGE`."""
SPENT_MESSAGE = 2**19
MOST_BITS = 256
"""Bits of the largest integer that operators read or make."""
_DEEPEST = 200
_REMEMBERED = 8
_CONTAINERS: tuple[type, ...] = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
"""Kinds of containers. They are Python's own, because the data of a template is plain JSON."""


class TooLarge(ValueError):
    """A template's operation would make a value that is too large."""


class Spending:
    """Bounds of one rendering, and what it has spent."""

    def __init__(self, messages: Sequence[object], tools: Sequence[object]) -> None:
        data = PER_CHARACTER * characters((messages, tools))
        self.longest = LONGEST + data
        self.output = OUTPUT + data
        self._left = SPENT + SPENT_MESSAGE * len(messages) + data
        self._sizes: OrderedDict[int, tuple[object, int]] = OrderedDict()

    def check(self, size: int) -> None:
        """Raise `TooLarge` if a value of this size may not be made."""
        if size > self.longest:
            raise TooLarge(f"an operation would make a value of more than {self.longest} bytes")

    def spend(self, size: int) -> None:
        """Count the size of a new value. Raises `TooLarge` if the value is, or if all values together are."""
        self.check(size)
        self._left -= size
        if self._left < 0:
            raise TooLarge("all values that the template makes take too much memory")

    def size(self, value: object) -> int:
        """Size of a value. The last long lists are remembered, because templates extend a list in a loop."""
        if not isinstance(value, list) or len(value) < PART:
            return size(value, self.longest)
        known = self._sizes.get(id(value))
        return size(value, self.longest) if known is None else known[1]

    def remember(self, value: list[Any], size: int) -> None:
        """Remember the size of a list, which a template cannot change."""
        if len(value) >= PART:
            self._sizes[id(value)] = value, size
            if len(self._sizes) > _REMEMBERED:
                self._sizes.popitem(last=False)


_spending: ContextVar[Spending] = ContextVar("spending of a rendering")


def spending() -> Spending:
    """Spending of the rendering in this thread."""
    return _spending.get()


@contextmanager
def spends(allowed: Spending) -> Iterator[None]:
    """Count what the block spends."""
    token = _spending.set(allowed)
    try:
        yield
    finally:
        _spending.reset(token)


def checked(value: Any) -> Any:
    """The value of an expression, counted. Raises `TooLarge`."""
    spent = spending()
    spent.spend(spent.size(value))
    return value


def bounded_list(values: Iterable[Any]) -> list[Any]:
    """List of the values, counted while it is made. Raises `TooLarge`."""
    spent, total, made = spending(), 0, []
    for value in values:
        total += PART + spent.size(value)
        spent.check(total)
        made.append(value)
    spent.spend(total)
    return made


def concat(pieces: Iterable[str]) -> str:
    """Join the pieces of a text. Raises `TooLarge` before the text is made."""
    spent, total, texts = spending(), 0, []
    for piece in pieces:
        total += len(piece)
        spent.check(total)
        texts.append(piece)
    text = "".join(texts)
    spent.spend(sys.getsizeof(text))
    return text


class Pieces(list[str]):
    """Pieces of a text that a macro or a block prints, counted one by one."""

    def append(self, piece: str) -> None:
        """Add a piece."""
        spending().spend(PART + sys.getsizeof(piece))
        super().append(piece)

    def extend(self, pieces: Iterable[str]) -> None:
        """Add pieces."""
        for piece in pieces:
            self.append(piece)


def size(value: object, limit: int) -> int:
    """Size of a value. Counting ends above the limit. Raises `TooLarge` for a value of more than 200 levels."""
    if isinstance(value, str):
        return sys.getsizeof(value)
    if not isinstance(value, _CONTAINERS):
        return sys.getsizeof(value) if isinstance(value, (int, bytes)) else PART
    total, levels = PART, [_parts(value)]
    while levels:
        for part in levels[-1]:
            total += PART
            if isinstance(part, (str, int, bytes)):
                total += sys.getsizeof(part)
            elif isinstance(part, _CONTAINERS):
                total += PART
                levels.append(_parts(part))
                if len(levels) > _DEEPEST:
                    raise TooLarge(f"a value has more than {_DEEPEST} levels")
                break
            if total > limit:
                return total
        else:
            levels.pop()
    return total


def width(text: str) -> int:
    """Largest number of bytes that a text adds to a text that it becomes a part of."""
    return len(text) if text.isascii() else 4 * len(text)


def depth(value: object) -> int:
    """Levels of a value that `size` has accepted."""
    deepest, level = 0, [value]
    while level := [part for part in level if isinstance(part, _CONTAINERS)]:
        deepest, level = deepest + 1, [part for container in level for part in _parts(container)]
    return deepest


def characters(data: object) -> int:
    """Characters of all texts in JSON data."""
    if isinstance(data, str):
        return len(data)
    return sum(map(characters, _parts(data))) if isinstance(data, _CONTAINERS) else 0


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        return chain.from_iterable(value.items())
    return iter(value)  # type: ignore[call-overload]
