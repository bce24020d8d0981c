"""Tool schemas from functions, and validation of a call's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from grpo.errors import ConfigError
from grpo.messages import Tool


def tool_from_function(
    name: str,
    function: Callable[..., Any],
    *,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Tool:
    """Make a tool from a function. Defaults are the first line of its docstring and the schema of its signature.

        def refund(order: str, amount: int = 0): "Pay back."   →   refund(order string, amount integer?)

    Raises `ConfigError` if the signature gives no schema, or if the parameters are not a JSON schema.
    """
    schema = _read_signature(name, function) if parameters is None else dict(parameters)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"tool {name}: parameters are not a JSON schema: {error.message}") from error
    if description is None:
        description = (inspect.getdoc(function) or "").partition("\n")[0]
    return Tool(name=name, description=description, parameters=schema)


def argument_error(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the first violation of the tool's schema by the arguments of a call, or None.

    Arguments outside the schema are refused unless `additionalProperties` allows them.
    """
    known = tool.parameters.get("properties", {})
    unknown = sorted(set(arguments) - set(known))
    if unknown and not tool.parameters.get("additionalProperties"):
        return f"{tool.name} has no argument {', '.join(unknown)}; it takes {', '.join(known) or 'none'}"
    for error in Draft202012Validator({"type": "object", **tool.parameters}).iter_errors(dict(arguments)):
        place = ".".join(map(str, error.absolute_path))
        return f"{tool.name}: {f'{place}: ' if place else ''}{error.message}"
    return None


def equal_values(first: Any, second: Any) -> bool:
    """Compare two arguments by their values in JSON.

        1 = 1.0     {"a": 1, "b": 2} = {"b": 2, "a": 1}     1 ≠ "1"     1 ≠ true     "2024-01-01" is a text

    A date, as YAML reads one, is equal to its text.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal_values(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(equal_values, first, second))
    first, second = (value.isoformat() if isinstance(value, date) else value for value in (first, second))
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def _read_signature(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        schema = TypeAdapter(cast(Any, function)).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, ValueError, TypeError) as error:
        raise ConfigError(f"tool {name}: no schema can be read from its signature. Give parameters: {error}") from error
    if schema.get("type") != "object":
        raise ConfigError(f"tool {name} takes arguments without names. Give it parameters that can be named")
    return schema
