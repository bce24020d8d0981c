"""Schemas of tools, derived from calls that were seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def describe_tools(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Tools by name: the arguments that occur, their JSON types, and as required those of every call.

        cancel(order="7"), cancel(order="8", notify=True)
        → cancel: order string, notify boolean, required order

    Descriptions are empty: calls do not tell them.
    """
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for name, arguments in calls:
        seen.setdefault(name, []).append(arguments)
    return [
        {
            "name": name,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {
                    key: _schema([call[key] for call in group if key in call])
                    for key in sorted({key for call in group for key in call})
                },
                "required": sorted(set.intersection(*(set(call) for call in group))),
            },
        }
        for name, group in sorted(seen.items())
    ]


def _schema(values: list[Any]) -> dict[str, Any]:
    types = sorted({_TYPES[type(value)] for value in values})
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        schema["items"] = _schema(items)
    return schema
