"""Errors in data of others. Any exception of a library becomes a `DataError` or the problem of a record.

    one record           try_call(build)            the value, or the exception as a value: the record is quarantined
    a whole source       read_guarded(read, place)  records, or a `DataError` with place and remedy
    a quarantined value  excerpt(value)             text of bounded size, for any value

`try_call` is the only place of ingestion that catches `Exception`. It has to, because parsers raise `RecursionError`,
`OverflowError`, `MemoryError`, `UnicodeDecodeError` and types of their own, and objects of a generator may raise any
type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from grpo.errors import DataError, GRPOError

LONGEST_LINE = 16 * 2**20
"""Bytes of a line, row or record that is read."""
MOST_COLUMNS = 10_000
"""Columns of a table, or keys of a record."""
MOST_CONTAINERS = 2**20
"""Lists and objects of a JSON record, counted before it is parsed. One of two bytes takes 60 once it is read."""
EXCERPT_CHARS = 500
_TRANSIENT = (ConnectionError, TimeoutError)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NOT_SHOWN = "a value that cannot be shown"

T = TypeVar("T")


def check_is_file(path: Path) -> None:
    """Raise `DataError` for a pipe, a device or a socket, which may have no end and cannot be read twice."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is a pipe or a device, and a source is read several times. Store it in a file")


def check_columns(path: Path, count: int) -> None:
    """Raise `DataError` if a table has too many columns."""
    if count > MOST_COLUMNS:
        raise DataError(f"{path} has {count} columns, and at most {MOST_COLUMNS} are read. Leave out the others")


def has_more_containers(content: bytes, most: int) -> bool:
    """Return True if a text of JSON has more lists and objects. Brackets in its strings do not count."""
    return _brackets(content) > most and _brackets(_STRING.sub(b"", content)) > most


def has_crowded_object(content: bytes) -> bool:
    """Return True if an object of a text of JSON certainly has more than `MOST_COLUMNS` keys, as it has few objects."""
    return _is_crowded(content) and _is_crowded(_STRING.sub(b"", content))


def _is_crowded(content: bytes) -> bool:
    return content.count(b":") > MOST_COLUMNS * max(1, content.count(b"{"))  # a text without an object is no JSON


def _brackets(content: bytes) -> int:
    return content.count(b"[") + content.count(b"{")


def try_call(build: Callable[[], T]) -> T | Exception:
    """Return what `build` returns, or the exception that it raised."""
    try:
        return build()
    except Exception as error:
        return error


def read_guarded(read: Callable[[], Iterable[T]], place: str) -> Iterator[T]:
    """Read a source lazily.

    An exception becomes a `DataError`, unless it is an error of this package, or a transient one (`ConnectionError`,
    `TimeoutError`) that a retry of the stage may fix.
    """
    count = 0
    records = _unless_broken(try_call(lambda: iter(read())), place, count)
    while (record := _unless_broken(try_call(lambda: next(records, None)), place, count)) is not None:
        count += 1
        yield record


def _unless_broken(value: T | Exception, place: str, count: int) -> T:
    if not isinstance(value, Exception):
        return value
    if isinstance(value, (GRPOError, *_TRANSIENT)):
        raise value
    where = f"after record {count}" if count else "at its beginning"
    raise DataError(f"source {place} cannot be read {where}: {error_text(value)}. Fix it or fetch it again") from value


def error_text(error: Exception) -> str:
    """Type and message of an exception, shortened.

    The type is left out for `ValueError` and `DataError`, because their messages are written for readers.
    """
    text = try_call(lambda: excerpt(str(error)))
    message = _NOT_SHOWN if isinstance(text, Exception) else text
    return message if type(error) in (ValueError, DataError) else f"{type(error).__name__}: {message}".rstrip(": ")


def problem_text(error: Exception, kind: str) -> str:
    """Problem of a record that could not be read: `not as published: no 'category'`."""
    if isinstance(error, ValidationError):
        return f"{kind}: {excerpt(first_validation_error(error))}"
    if isinstance(error, LookupError):
        return f"{kind}: no {error_text(error).removeprefix(f'{type(error).__name__}: ')}"
    return f"{kind}: {error_text(error)}"


def first_validation_error(error: ValidationError) -> str:
    """Place and message of the first validation error: `user_scenario: Field required`."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def excerpt(value: Any, limit: int = EXCERPT_CHARS) -> str:
    """First characters of a text, or of a value as JSON. If JSON cannot hold a part of it, the excerpt ends there.

    {"id": "a", "world": {(1, 2): 3}}  →  {"id": "a", "world": { … not JSON: TypeError: keys must be str, …
    """
    parts: list[str] = []
    error = try_call(lambda: _gather(value, limit, parts))
    text = "".join(parts)[:limit]
    if isinstance(error, Exception):
        reason = try_call(lambda: str(error)[:limit])
        text += f" … not JSON: {type(error).__name__}: {_NOT_SHOWN if isinstance(reason, Exception) else reason}"
    return text.encode(errors="replace").decode()


def _gather(value: Any, limit: int, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(str(value[:limit]))
        return
    size = 0
    for chunk in json.JSONEncoder(ensure_ascii=False, default=_name).iterencode(value):
        parts.append(chunk)
        size += len(chunk)
        if size >= limit:
            return


def _name(value: Any) -> str:
    """An object's own text without its address in memory, because that differs from run to run."""
    text = try_call(lambda: _ADDRESS.sub("", str(value)))
    return f"<{type(value).__name__}>" if isinstance(text, Exception) else text
