"""JSON that every reader accepts: bounded in depth, numbers and size, without NaN, infinities and half surrogates.

Python's `json` decodes `NaN`, `1e999`, half of a surrogate pair, ten thousand levels and a million digits, each of
which breaks something later: UTF-8, Parquet, a client's parser, or the stack. Text that a model or its client writes is
decoded here, and what leaves the process is encoded here, so that a value that passed can be written anywhere.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 64
"""Most levels of lists and objects, far below the recursion limit of Python and of a client's parser."""
MAX_DIGITS = 400
"""Most characters of a number, because Python refuses to convert integers of more than 4,300."""
MAX_CHARACTERS = 1_000_000

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_SHOWN = 40


class NotStrictJSON(ValueError):
    """A text or value that is not JSON, or beyond the bounds of this module."""


def decode(text: str) -> Any:
    """Value of a JSON text. Raises `NotStrictJSON`."""
    start = len(text) - len(text.lstrip(" \t\r\n"))
    value, end = decode_at(text, start)
    if rest := text[end:].strip(" \t\r\n"):
        raise NotStrictJSON(f"text after the value: {rest[:_SHOWN]!r}")
    return value


def decode_at(text: str, position: int) -> tuple[Any, int]:
    """Value that begins at a position of a text, and the position after it. Raises `NotStrictJSON`."""
    _check_depth(text, position)
    try:
        value, end = _DECODER.raw_decode(text, position)
    except NotStrictJSON:
        raise
    except ValueError as error:  # the library's message names a line and column of the whole text
        raise NotStrictJSON(f"not JSON: {getattr(error, 'msg', error)}") from None
    except StopIteration as error:
        raise NotStrictJSON("not JSON: no value") from error
    if end - position > MAX_CHARACTERS:
        raise NotStrictJSON(f"a value of {end - position} characters, but at most {MAX_CHARACTERS} are read")
    encode(value)
    return value, end


def encode(value: Any, *, indent: int | None = None) -> str:
    """JSON text of a value, in characters that UTF-8 has. Raises `NotStrictJSON` for one that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
        text.encode()
    except UnicodeEncodeError as error:
        raise NotStrictJSON("a text has half of a surrogate pair") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise NotStrictJSON(f"not a value of JSON: {error}") from None
    return text


def as_json(value: Any) -> Any:
    """A value of another notation as JSON has it, with lists for tuples. Raises `NotStrictJSON`."""
    return decode(encode(value))


def is_text(value: object) -> bool:
    """True for a text that can be written in UTF-8, which half of a surrogate pair cannot."""
    return isinstance(value, str) and (value.isascii() or clean_text(value) == value)


def clean_text(text: str) -> str:
    """Text in which pairs of surrogates are joined, and U+FFFD stands for half of one: it can be written in UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _check_depth(text: str, position: int) -> None:
    """Raise `NotStrictJSON` for a value that is nested too deeply, without recursion."""
    depth = 0
    for token in _TOKEN.finditer(text, position):
        if token[0] in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise NotStrictJSON(f"more than {MAX_DEPTH} levels of nesting")
        elif token[0] in ("]", "}"):
            depth -= 1
        if depth <= 0:
            return


def _integer(text: str) -> int:
    _check_digits(text)
    return int(text)


def _float(text: str) -> float:
    _check_digits(text)
    value = float(text)
    if not math.isfinite(value):
        raise NotStrictJSON(f"the number {text[:_SHOWN]} is too large")
    return value


def _check_digits(text: str) -> None:
    if len(text) > MAX_DIGITS:
        raise NotStrictJSON(f"a number of {len(text)} characters, but at most {MAX_DIGITS} are read")


def _constant(name: str) -> Any:
    raise NotStrictJSON(f"{name} is not a number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise NotStrictJSON(f"the key {twice[:_SHOWN]!r} is given twice")
    return record


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_object)
