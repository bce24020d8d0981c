"""Lines of a file of training data, each with a JSON object. No line is skipped silently, except blank ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from grpo.errors import DataError
from grpo.scenarios.readers.files.json_file import read_jsonl

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[Any, str], T], *, noun: str, form: str, setting: str) -> Iterator[T]:
    """Parse each line that is not blank. `parse` takes the JSON object and its place.

    Messages use `noun` for a line, `form` for its expected form, and `setting` for the setting of the path. Raises
    `DataError` if the file cannot be read, if a line is no JSON object, or if `parse` fails on it.
    """
    try:
        if not path.is_file():
            fault = "it is not a regular file" if path.exists() else "the file does not exist"
            raise DataError(f"{path} cannot be read: {fault}. Correct {setting}")
        for record in read_jsonl(path):
            place = f"{path}, line {record.line}"
            if record.data is None:
                raise DataError(f"{place} is not {noun} ({record.problem}). Write {form}")
            yield parse_record(record.data, parse, place=place, noun=noun, form=form)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}. Correct {setting}") from error


def parse_record(record: Any, parse: Callable[[Any, str], T], *, place: str, noun: str, form: str) -> T:
    """Parse a record at this place. Raises `DataError` if `parse` fails on it."""
    try:
        return parse(record, place)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, DataError) else str(error)
        raise DataError(f"{place} is not {noun} ({reason}). Write {form}") from error
