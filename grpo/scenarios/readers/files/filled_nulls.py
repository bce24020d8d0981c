"""Nulls that a table has filled into a record. They are left out.

All objects of a table's column have the same fields, and a field is null where a row lacks it. `datasets` also writes
such rows as JSON. So every tool of a file has the parameters of all tools, and every call the arguments of all calls:

    tool look_up    {"properties": {"order": {"type": "string"}, "city": null}}   →   {"properties": {"order": …}}
    call look_up    {"order": "7", "city": null}                                  →   {"order": "7"}

A record counts as filled by a table if it has null as the schema of a tool's parameter, as the `tool_calls` of a
message that cannot have calls, or as an expected outcome, because people and APIs do not write null there. In all other
records every null stays, e.g. an argument that an agent has given as null. In `metadata`, null always means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.scenarios.readers.files.places import without_nulls

_OTHERS = ("user", "system", "developer", "tool")
"""Roles whose messages cannot have tool calls."""


def without_filled_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without nulls, if a table has filled it, and otherwise without those in `metadata`.

    In `world`, nulls may be data. There only the arguments of the calls in `recorded` lose them.
    """
    if not _is_filled(record):
        metadata = record.get("metadata")
        return {**record, "metadata": _given(metadata)} if isinstance(metadata, Mapping) else dict(record)
    cleaned: dict[str, Any] = {
        name: _world_without_nulls(value) if name == "world" else without_nulls(value)
        for name, value in record.items()
        if value is not None
    }
    return cleaned


def _is_filled(record: Mapping[str, Any]) -> bool:
    if _has_null(record.get("expected")):
        return True
    return any(_has_calls_of_others(value) or _has_null_schema(value) for value in _lists(record))


def _has_null(fields: Any) -> bool:
    return isinstance(fields, Mapping) and any(value is None for value in fields.values())


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _lists(record: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Lists of the record and of its objects, e.g. of `request`: messages and tools."""
    for value in record.values():
        inner = value.values() if isinstance(value, Mapping) else (value,)
        yield from (item for item in inner if isinstance(item, list))


def _has_calls_of_others(messages: list[Any]) -> bool:
    return any(
        isinstance(message, Mapping)
        and message.get("role") in _OTHERS
        and "tool_calls" in message
        and message["tool_calls"] is None
        for message in messages
    )


def _has_null_schema(tools: list[Any]) -> bool:
    """Return True if a parameter of a tool has null as its schema."""
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        if isinstance(parameters, Mapping) and _has_null(parameters.get("properties")):
            return True
    return False


def _world_without_nulls(world: Any) -> Any:
    if not isinstance(world, Mapping) or not isinstance(world.get("recorded"), list):
        return world
    return {**world, "recorded": [_call_without_nulls(call) for call in world["recorded"]]}


def _call_without_nulls(call: Any) -> Any:
    if not isinstance(call, Mapping) or "arguments" not in call:
        return call
    return {**call, "arguments": without_nulls(call["arguments"])}
