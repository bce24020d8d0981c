"""Arguments of calls: an object, its JSON text, or single values without quotes, read with the tool's schema."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from grpo.strict_json import as_json, decode

_FAULTS = (ValueError, SyntaxError, RecursionError, MemoryError)
_TYPES = {"string", "number", "integer", "boolean", "null", "object", "array"}
_MOST_REFERENCES = 8
"""Most references in a row that are followed, so that a schema that refers to itself ends."""


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


def typed_value(raw: str, name: str, parameters: Mapping[str, Any]) -> Any:
    """Value of an argument that a call has without quotes, in the first type that the tool's schema accepts.

    A value may be JSON, a text, or Python. A text keeps its quotes. Only types, enums and constants of the schema are
    compared, also of the definitions to which it refers. If the schema accepts every value, or none of these, JSON
    comes first, and the text last.

        {"type": ["string", "null"]}    `5` → "5", `null` → None, `{"a": 1}` → '{"a": 1}'
        {"enum": ["1", "2"]}            `1` → "1"
    """
    as_json_text, as_python = _read(decode, raw), _read(_literal, raw)
    definitions = {**_object(parameters.get("definitions")), **_object(parameters.get("$defs"))}
    schema = _object(parameters.get("properties")).get(name)
    choices = list(_choices(schema, definitions, _MOST_REFERENCES))
    if choices and {} not in choices:
        no_text = [value for value in as_json_text if not isinstance(value, str)]
        none = [None] if raw.strip() == "None" else []
        types = [{"type": choice["type"]} for choice in choices if "type" in choice]
        for accepted in (choices, types):
            validators = [Draft202012Validator(choice) for choice in accepted]
            for value in (*no_text, *none, raw, *as_json_text, *as_python):
                if any(validator.is_valid(value) for validator in validators):
                    return value
    return next(iter([*as_json_text, *as_python]), raw)


def _read(read: Callable[[str], Any], raw: str) -> list[Any]:
    """The value of a text, or nothing if it cannot be read in this way."""
    try:
        return [read(raw)]
    except _FAULTS:
        return []


def _literal(raw: str) -> Any:
    return as_json(ast.literal_eval(raw.strip()))


def _choices(schema: Any, definitions: Mapping[str, Any], references: int) -> Iterator[dict[str, Any]]:
    """Types, enums and constants that a schema accepts. An empty one accepts every value.

    The schema may come from a client. Parts of it that are not valid JSON schema restrict nothing.
    """
    name = _object(schema).get("$ref")
    if isinstance(name, str):
        if references:
            yield from _choices(definitions.get(name.rpartition("/")[2]), definitions, references - 1)
        return
    unions = [union for key in ("anyOf", "oneOf", "allOf") if isinstance(union := _object(schema).get(key), list)]
    for union in unions:
        for choice in union:
            yield from _choices(choice, definitions, references)
    if not unions:
        yield {key: value for key, value in _object(schema).items() if _restricts(key, value)}


def _restricts(key: str, value: Any) -> bool:
    """True for types, an enum or a constant as JSON schema writes them."""
    if key == "type":
        names = value if isinstance(value, list) else [value]
        return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)
    return key == "const" or (key == "enum" and isinstance(value, list))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
