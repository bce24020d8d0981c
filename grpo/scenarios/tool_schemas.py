"""Tool schemas, inferred from calls."""

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


def infer_tool_schemas(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Infer tools with the JSON types of their arguments. An argument is required if every call has it.

        cancel(order="7"), cancel(order="8", notify=True)
        → cancel: order string, notify boolean, required order

    Descriptions stay empty. A call without a name is skipped, so that only its own record is refused, and not all
    records that share the tools.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for name, arguments in calls:
        if name.strip():
            by_name.setdefault(name, []).append(arguments)
    return [{"name": name, "description": "", "parameters": _parameters(by_name[name])} for name in sorted(by_name)]


def _parameters(calls: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = sorted({name for arguments in calls for name in arguments})
    return {
        "type": "object",
        "properties": {name: _schema([arguments[name] for arguments in calls if name in arguments]) for name in names},
        "required": [name for name in names if all(name in arguments for arguments in calls)],
    }


def _schema(values: list[Any]) -> dict[str, Any]:
    types = sorted({_TYPES[type(value)] for value in values})
    schema: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        schema["items"] = _schema(items)
    return schema
