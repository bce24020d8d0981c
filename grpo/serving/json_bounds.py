"""Number of values and depth of a JSON text, counted before it is parsed.

Python's parser holds the interpreter's lock: a million numbers or empty objects stop the event loop for 150 ms, also
when a thread parses them. NumPy counts what stands outside of the strings without that lock, and a text with too many
values is never parsed.

    {"a": [1, 2], "b": "x,y"}      values: 1 + 2 opening brackets + 2 commas outside of strings = 5      depth 2
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

DEPTH = 64
"""Brackets within each other at most; schemas of tools have about ten."""
VALUES = 100_000
"""Values of a chat request at most: 2,000 messages and 128 tools have fewer. They are parsed in about 20 ms."""
SMALL_VALUES = 5_000
"""Values of a request at most that generates nothing."""
FIELDS = 64
"""Fields of an object at most, known and unknown; no object of a request has as many known ones."""
FAULTS = 256
"""Faults of a request whose descriptions are built. Each takes 10 µs, in which nothing else runs."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BoundedFields(BaseModel):
    """Object of a request whose unknown fields are bounded before pydantic builds an error for each of them."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > FIELDS:
            unknown = next(name for name in value if name not in cls.model_fields)
            fault: Any = {"type": "extra_forbidden", "loc": (unknown,), "input": None}
            raise ValidationError.from_exception_data(cls.__name__, [fault])
        return value


def at_most(entries: int) -> BeforeValidator:
    """Bound of the entries of a dict, which pydantic counts only when it has validated all of them."""

    def bounded(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise ValueError(f"it has {len(value)} entries; send {entries} at most")
        return value

    return BeforeValidator(bounded)


def values_and_depth(content: bytes) -> tuple[int, int]:
    """Upper bound of the number of values, and the depth, of a text that need not be valid JSON."""
    characters = np.frombuffer(content.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    outside = np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8)) == 0
    structure = characters[outside]
    opening = (structure == ord("[")) | (structure == ord("{"))
    closing = (structure == ord("]")) | (structure == ord("}"))
    depth = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
    values = 1 + np.count_nonzero(opening) + np.count_nonzero(structure == ord(","))
    return int(values), int(depth.max(initial=0))


def encodable(document: bytes | str) -> bool:
    r"""Return False for JSON with a lone surrogate, as `"\ud800"`, and for bytes that are not UTF-8.

    Python's parser takes UTF-16 and encoded surrogates as well. Other text, JSON or not, is left to its parser.
    """
    content = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    if b"\0" in content:  # UTF-16 or UTF-32; in JSON it is an escape
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    if _SURROGATE.search(content) is None:
        return True
    try:
        if values_and_depth(content)[0] > VALUES:  # its parser refuses it
            return True
        json.dumps(json.loads(content), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except (ValueError, RecursionError):
        return True
    return True
