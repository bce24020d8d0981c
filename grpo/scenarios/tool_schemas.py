"""Tool schemas, inferred from calls, or read from parameters that are declared in Python's words."""

from __future__ import annotations

import ast
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
_WORDS = {
    **{kind.__name__: name for kind, name in _TYPES.items()},
    **dict.fromkeys(("tuple", "set", "sequence", "iterable", "frozenset"), "array"),
    **{"none": "null", "double": "number", "text": "string", "mapping": "object"},
    **{name: name for name in _TYPES.values()},
}
"""JSON types by the words for them in Python and JSON, in lower case."""
_MOST_TYPE = 200
"""Characters of a type that is read."""


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


def declared_parameters(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """JSON Schema of parameters that are declared by name, with types in Python's words, as xLAM's tools are.

        {"order": {"type": "str"}, "days": {"type": "List[int], optional", "default": []}}
        → {"type": "object", "properties": {
              "order": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}, "default": []}
          }, "required": ["order"]}

    A parameter with a default, and one that is called optional, is not required. If a type is not known, the parameter
    may have any value. In parameters that are a schema already, only the words for types are JSON's own afterwards.
    """
    if not parameters or not all(isinstance(item, Mapping) and _is_declaration(item) for item in parameters.values()):
        return {key: _in_json_types(key, item) for key, item in parameters.items()}
    properties, required = {}, []
    for name, item in parameters.items():
        schema, is_optional = _schema_of(str(item.get("type", "")))
        properties[name] = {**{key: value for key, value in item.items() if key != "type"}, **schema}
        if not is_optional and "default" not in item:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _in_json_types(key: str, value: Any) -> Any:
    """A part of a schema with JSON's words for types: `dict` → `object`. Values such as defaults stay as they are."""
    if key == "type" and isinstance(value, str):
        return _WORDS.get(value.lower(), value)
    if key in ("default", "const", "enum", "examples"):
        return value
    if isinstance(value, Mapping):
        return {name: _in_json_types(name, item) for name, item in value.items()}
    return [_in_json_types("", item) for item in value] if isinstance(value, list) else value


def _is_declaration(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("type"), str)


def _schema_of(text: str) -> tuple[dict[str, Any], bool]:
    """Schema of a type such as `List[int], optional`, and if it is called optional."""
    try:
        node = ast.parse(text.strip()[:_MOST_TYPE], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, "optional" in text.lower()
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    words = {part.id.lower() for part in parts if isinstance(part, ast.Name)}
    is_optional = "optional" in words or any(_outer(part) == "optional" for part in parts)
    return (_schema_of_node(parts[0]) if parts else {}), is_optional


def _outer(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(value, ast.Constant) and value.value is None:
        return "none"
    return value.id.lower() if isinstance(value, ast.Name) else ""


def _schema_of_node(node: ast.expr) -> dict[str, Any]:
    """Schema of a type: `int`, `List[int]`, `Optional[int]`, `Union[int, str]` or `int | str`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([node.left, node.right])
    outer = _outer(node)
    inner = node.slice if isinstance(node, ast.Subscript) else None
    parts = [] if inner is None else inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if outer in ("optional", "union") and parts:
        return _union(parts)
    kind = _WORDS.get(outer)
    if kind is None:
        return {}
    items = _schema_of_node(parts[0]) if kind == "array" and outer != "tuple" and len(parts) == 1 else {}
    return {"type": kind, **({"items": items} if items else {})}


def _union(parts: list[ast.expr]) -> dict[str, Any]:
    """Schema of values of one of several types. The types of lists are not kept apart."""
    schemas = [_schema_of_node(part) for part in parts]
    if len(schemas) == 1:
        return schemas[0]
    types = [schema.get("type") for schema in schemas]
    flat = dict.fromkeys(kind for part in types for kind in (part if isinstance(part, list) else [part]))
    return {} if None in flat else {"type": list(flat)}
