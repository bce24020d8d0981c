"""The first records of a source for a look at it, bounded in number and in characters.

A bound on the number alone is not enough: a record may have 16 MiB, so that 200 of them take 3 GB of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

MOST_CHARACTERS = 16 * 2**20
"""Default for the characters of the texts in all records that are looked at together."""
T = TypeVar("T")


def characters(value: Any) -> int:
    """Characters of all texts in a value of JSON. Any other value counts as one."""
    count, values = 0, [value]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            values += value
        else:
            count += len(value) if isinstance(value, str | bytes) else 1
    return count


def first_records(
    records: Iterable[T],
    most: int,
    *,
    most_characters: int = MOST_CHARACTERS,
    size: Callable[[T], int] = characters,
) -> Iterator[T]:
    """Up to `most` records with up to `most_characters` together, but at least one. `size` counts those of a record."""
    total = 0
    for index, record in enumerate(islice(records, most)):
        total += size(record)
        if index and total > most_characters:
            return
        yield record
