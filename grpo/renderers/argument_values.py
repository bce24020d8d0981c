"""Arguments of calls: an object, its JSON text, or single values without quotes, read with the tool's schema."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from grpo.strict_json import as_json, decode

_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)


def read_arguments(value: Any) -> dict[str, Any]:
    """Arguments of a call, given as an object or its JSON text. Null and an empty text give no arguments.

    Raises `ValueError` if the value is anything else.
    """
    if isinstance(value, str):
        value = decode(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("arguments are not an object")
    return value


def typed_value(raw: str, schema: Any) -> Any:
    """Value of an argument without quotes, by its JSON schema. Without a schema it is read as JSON, Python or text."""
    types = set(_types(schema))
    if types == {"string"}:
        return raw
    if raw.strip() == "None" and "null" in types:
        return None
    try:
        value = decode(raw)
    except ValueError:
        if "string" in types:
            return raw
        try:
            return as_json(ast.literal_eval(raw.strip()))
        except _FAULTS:
            return raw
    return raw if "string" in types and isinstance(value, (int, float)) and not {"integer", "number"} & types else value


def _types(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        declared = schema.get("type", ())
        yield from [declared] if isinstance(declared, str) else declared
        for union in ("anyOf", "oneOf"):
            for choice in schema.get(union, ()):
                yield from _types(choice)
