"""Tool schemas from functions, and validation of a call's arguments."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from datetime import date
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from grpo.errors import ConfigError
from grpo.messages import Tool

_NO_OTHER_SCHEMAS: Registry[Any] = Registry()
"""Otherwise jsonschema would fetch the address that a `$ref` names, and the schema may be from a stranger's file."""


def tool_from_function(
    name: str,
    function: Callable[..., Any],
    *,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Tool:
    """Make a tool from a function. Defaults are the first line of its docstring and the schema of its signature.

        def refund(order: str, amount: int = 0): "Pay back."   →   refund(order string, amount integer?)

    The description of a parameter comes from its annotation, `Annotated[str, "its number"]` or pydantic's `Field`, or
    from its line under `Args:` in the docstring.

    Raises `ConfigError` if the signature gives no schema, or if the parameters are not a JSON schema.
    """
    schema = _described(_read_signature(name, function), function) if parameters is None else dict(parameters)
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
    schema = Draft202012Validator({"type": "object", **tool.parameters}, registry=_NO_OTHER_SCHEMAS)
    try:
        for error in schema.iter_errors(dict(arguments)):
            place = ".".join(map(str, error.absolute_path))
            return f"{tool.name}: {f'{place}: ' if place else ''}{error.message}"
    except Unresolvable as error:
        return f"{tool.name}: its schema refers to {error.ref}, which is not in it"
    return None


def typed_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call in the types of the function's annotations: models, dataclasses, enums, dates, sets.

        def order(item: Item, when: date)   {"item": {"name": "lamp"}, "when": "2026-11-20"}
                                          → {"item": Item(name="lamp"), "when": date(2026, 11, 20)}

    Values of JSON's own types stay as they are. Raises `ValueError` with the first value that its type refuses.
    """
    typed = dict(arguments)
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)  # so that the cache keeps no object of a bound method
    if not isinstance(function, Hashable):  # an object of a class with a comparison of its own
        return typed
    for name, adapter in _adapters(function).items():
        if name not in typed:
            continue
        try:
            typed[name] = adapter.validate_python(typed[name])
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, (name, *problem["loc"])))
            raise ValueError(f"{place}: {problem['msg']}") from error
    return typed


@functools.lru_cache(maxsize=1024)
def _adapters(function: Callable[..., Any]) -> dict[str, TypeAdapter[Any]]:
    """Adapters of the parameters with types that JSON does not have. Others get their values as they are.

    A type without a schema has none, e.g. of an object that is the default of its parameter.
    """
    adapters: dict[str, TypeAdapter[Any]] = {}
    for name, kind in _annotations(function).items():
        if not _is_json(kind):
            with suppress(PydanticSchemaGenerationError, PydanticUserError):
                adapters[name] = TypeAdapter(_repeatable(kind))
    return adapters


def _repeatable(kind: Any) -> Any:
    """A list instead of an iterable, which pydantic would make an iterator that can be read once."""
    return list[get_args(kind)] if get_origin(kind) is Iterable else kind  # type: ignore[misc]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters, without the result. Empty if one of them exists only for type checkers."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: hint for name, hint in hints.items() if name != "return"}


def _is_json(kind: Any) -> bool:
    """True if a value of this type is the same in JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_json(inner[0])
    if origin in (Union, types.UnionType, list, Iterable, dict, Mapping):
        return all(map(_is_json, inner))
    return origin is Literal or kind in (str, int, float, bool, None, type(None), list, dict, Any) or is_typeddict(kind)


def _described(schema: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Schema with the descriptions of the function's parameters, where it has none."""
    texts = _lines_of_parameters(inspect.getdoc(function) or "")
    for name, hint in _annotations(function).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if text := next((note for note in notes if isinstance(note, str)), None):
            texts[name] = text
    properties = schema.get("properties", {})
    described = {
        name: {**part, "description": texts[name]} if name in texts and "description" not in part else part
        for name, part in properties.items()
    }
    return {**schema, "properties": described} if properties else schema


def _lines_of_parameters(docstring: str) -> dict[str, str]:
    """Descriptions of parameters under `Args:` of a docstring in Google's form."""
    if "Args:" not in docstring:
        return {}
    from transformers.utils.chat_template_utils import parse_google_format_docstring  # takes seconds to import

    return {name: " ".join(text.split()) for name, text in (parse_google_format_docstring(docstring)[1] or {}).items()}


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
