"""Nulls that a table has filled in. They are left out, because nobody wrote them.

All objects of a table's column have the same fields, and a field is null where a row lacks it. `datasets` writes such
rows as JSON. So every tool of a file has the parameters of all tools, and every call the arguments of all calls:

    tool look_up    {"properties": {"order": {"type": "string"}, "city": null}}   →   {"properties": {"order": …}}
    call look_up    {"order": "7", "city": null}                                  →   {"order": "7"}

A null that the tool's schema accepts stays, e.g. of a parameter with the types `["string", "null"]`. Every other null
argument would make the tool refuse the call, so it is left out of calls in other formats as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from grpo.data_errors import try_call
from grpo.messages import Message
from grpo.scenarios.readers.files.places import without_nulls

_SECTIONS = ("expected", "metadata")
_VALUES = ("default", "const", "enum", "examples")
"""Keywords of JSON Schema whose values may be null."""
M = TypeVar("M", bound=Message)


def schema_without_filled_nulls(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's parameters. If a null in it is no JSON Schema, it loses all of its null fields.

    Then a table has filled the others as well, e.g. a `const` that would allow nothing but null.
    """
    cleaned: dict[str, Any] = without_nulls(dict(schema)) if _has_filled_null(schema) else dict(schema)
    return cleaned


def _has_filled_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(item is None or _has_filled_null(item) for key, item in value.items() if key not in _VALUES)
    return isinstance(value, list) and any(map(_has_filled_null, value))


def fields_without_filled_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a scenario without the nulls that a table has filled into them. Nulls in `world` stay."""
    cleaned = dict(fields)
    for name in _SECTIONS:
        if isinstance(section := cleaned.get(name), dict):
            cleaned[name] = {key: value for key, value in section.items() if value is not None}
    schemas: dict[str, Mapping[str, Any]] = {}
    if isinstance(tools := cleaned.get("tools"), list):
        cleaned["tools"] = [_tool_without(tool) for tool in tools]
        schemas = {tool.get("name", ""): tool["parameters"] for tool in cleaned["tools"] if _has_schema(tool)}
    expected = cleaned.get("expected")
    if isinstance(expected, dict) and isinstance(calls := expected.get("calls"), list):
        cleaned["expected"] = {**expected, "calls": [_call_without(call, schemas) for call in calls]}
    return cleaned


def _has_schema(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("parameters"), dict)


def _tool_without(tool: Any) -> Any:
    return {**tool, "parameters": schema_without_filled_nulls(tool["parameters"])} if _has_schema(tool) else tool


def _call_without(call: Any, schemas: Schemas) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return call
    kept = {key: value for key, value in call.items() if value is not None}
    return {**kept, "arguments": _without_refused(call["arguments"], schemas.get(call.get("name", "")))}


Schemas = Mapping[str, Mapping[str, Any]]
"""JSON Schemas of the parameters of tools, by their names."""


def without_filled_nulls(messages: Sequence[M], schemas: Callable[[], Schemas]) -> tuple[M, ...]:
    """Messages whose calls have no null that the schema of their tool refuses. Calls of other tools stay as they are.

    `schemas` is called only if a call has a null.
    """
    if not any(_has_null(call.arguments) for message in messages for call in message.tool_calls):
        return tuple(messages)
    known = schemas()
    return tuple(_accepted(message, known) for message in messages)


def _accepted(message: M, schemas: Schemas) -> M:
    calls = (
        replace(call, arguments=_without_refused(call.arguments, schemas.get(call.name))) for call in message.tool_calls
    )
    return replace(message, tool_calls=tuple(calls))


def _has_null(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return value is None or any(map(_has_null, inner))


def _without_refused(arguments: Mapping[str, Any], schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Arguments without the nulls that the schema refuses, at any depth, and without null arguments that it lacks."""
    if schema is None:
        return arguments
    check = Draft202012Validator({"type": "object", **schema})
    errors = try_call(lambda: list(check.iter_errors(dict(arguments))))
    if isinstance(errors, Exception):  # a schema that is none refuses nothing
        return arguments
    refused = {tuple(error.absolute_path) for error in errors if error.instance is None}
    known = schema.get("properties", {})
    if not schema.get("additionalProperties"):
        refused |= {(name,) for name, value in arguments.items() if value is None and name not in known}
    cleaned: Mapping[str, Any] = _without(arguments, refused, ())
    return cleaned


def _without(value: Any, refused: Set[tuple[str | int, ...]], place: tuple[str | int, ...]) -> Any:
    if isinstance(value, Mapping):
        kept = {name: item for name, item in value.items() if (*place, name) not in refused}
        return {name: _without(item, refused, (*place, name)) for name, item in kept.items()}
    if isinstance(value, list):
        return [_without(item, refused, (*place, index)) for index, item in enumerate(value)]
    return value
