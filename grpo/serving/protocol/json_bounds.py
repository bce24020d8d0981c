"""Number of values and depth of a JSON text, counted before it is parsed.

Python's parser holds the interpreter's lock, so a million numbers or empty objects stop the event loop for 150 ms, even
if a thread parses them. NumPy counts the characters outside of strings without that lock, so that a text with too many
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
"""Most brackets inside each other. Schemas of tools have about ten."""
VALUES = 100_000
"""Most values of a chat request, which are parsed in about 20 ms. 2,000 messages and 128 tools have fewer."""
SMALL_VALUES = 5_000
"""Most values of a request that does not generate."""
FIELDS = 64
"""Most fields of an object, known and unknown. No object of a request has as many known fields."""
FAULTS = 256
"""Most faults of a request that are described, because each takes 10 µs, in which nothing else runs."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BoundedFields(BaseModel):
    """Object of a request with bounded fields, because pydantic would build an error for each unknown field."""

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > FIELDS:
            unknown = next(name for name in value if name not in cls.model_fields)
            fault: Any = {"type": "extra_forbidden", "loc": (unknown,), "input": None}
            raise ValidationError.from_exception_data(cls.__name__, [fault])
        return value


def at_most(entries: int) -> BeforeValidator:
    """Bound on the entries of a dict, checked first because pydantic counts them only after it has validated all."""

    def bounded(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise ValueError(f"it has {len(value)} entries. Send {entries} at most")
        return value

    return BeforeValidator(bounded)


def values_and_depth(content: bytes) -> tuple[int, int]:
    """Upper bound on the number of values, and the depth, of a text that need not be valid JSON."""
    characters = np.frombuffer(content.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    outside = np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8)) == 0
    structure = characters[outside]
    opening = (structure == ord("[")) | (structure == ord("{"))
    closing = (structure == ord("]")) | (structure == ord("}"))
    depth = np.cumsum(opening.astype(np.int8) - closing.astype(np.int8), dtype=np.int32)
    values = 1 + np.count_nonzero(opening) + np.count_nonzero(structure == ord(","))
    return int(values), int(depth.max(initial=0))


def encodable(document: bytes | str) -> bool:
    r"""Return False if JSON has a lone surrogate, e.g. `"\ud800"`, or if bytes are not UTF-8.

    This is checked here because Python's parser also accepts UTF-16 and encoded surrogates. For any other text the
    result is True, even if it is not JSON, because its parser will refuse it.
    """
    content = document.encode(errors="surrogatepass") if isinstance(document, str) else document
    if b"\0" in content:  # UTF-16 or UTF-32, because JSON would escape it
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
