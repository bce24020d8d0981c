"""Lines of a file of training data, each with a JSON object. No line is skipped silently, except blank ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from grpo.data_errors import LONGEST_LINE
from grpo.errors import DataError

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[Any, str], T], *, noun: str, form: str, setting: str) -> Iterator[T]:
    """Parse each line that is not blank. `parse` takes the JSON value and its place.

    Messages use `noun` for a line, `form` for its expected form, and `setting` for the setting of the path. Raises
    `DataError` if the file cannot be read, or if `parse` fails on a line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parse(line, parse, place=f"{path}, line {number}", noun=noun, form=form)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Correct {setting}") from error


def _parse(line: str, parse: Callable[[Any, str], T], *, place: str, noun: str, form: str) -> T:
    if len(line) > LONGEST_LINE:
        raise DataError(f"{place}: over-long line of {len(line)} characters, at most {LONGEST_LINE}. Shorten it")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not {noun} ({type(error).__name__}: {error}). Write {form}") from error
    return parse_record(record, parse, place=place, noun=noun, form=form)


def parse_record(record: Any, parse: Callable[[Any, str], T], *, place: str, noun: str, form: str) -> T:
    """Parse a record at this place. Raises `DataError` if `parse` fails on it."""
    try:
        return parse(record, place)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, DataError) else str(error)
        raise DataError(f"{place} is not {noun} ({reason}). Write {form}") from error
