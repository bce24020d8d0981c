"""Tools as functions of the world: (state, **arguments) → (new state, result)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel, create_model

from grpo.errors import ConfigError
from grpo.messages import Tool

State = dict[str, Any]
Function = Callable[..., Any]
"""(state, **arguments) → (new state, result), or an awaitable of it. The state that it is given is its own copy."""


class Refusal(Exception):
    """The world does not do what was asked; the model sees why, as `{"error": …}`, and nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Functions that share a state."""

    functions: Mapping[str, Function]
    """By the name of the tool."""
    place: str | None = None
    """Key of the scenario's world that these functions act on; None is all of it."""
    begin: Callable[[State], State] = field(default=dict)
    """The state to start from, from what the scenario says of it."""
    answers_count: bool = False
    """Whether the results of expected calls that change nothing must have been seen by the agent."""


def describe(function: Function) -> Tool:
    """The tool that a function is: name, first line of its docstring, and a schema from its annotations.

        def refund(state, order: str, amount: int = 0): "Pay back."   →   refund(order string, amount integer?)

    Raises `ConfigError` for an argument without an annotation.
    """
    hints = get_type_hints(function)
    _, *parameters = inspect.signature(function).parameters.values()
    bare = next((parameter.name for parameter in parameters if parameter.name not in hints), None)
    if bare is not None:
        raise ConfigError(f"tool {function.__name__}: argument {bare} has no annotation; the model must know its type")
    fields: dict[str, Any] = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in parameters
    }
    model: type[BaseModel] = create_model(function.__name__, **fields)
    lines = (inspect.getdoc(function) or "").splitlines()
    return Tool(
        name=function.__name__,
        description=lines[0] if lines else "",
        parameters={**model.model_json_schema(), "additionalProperties": False},
    )


def problem(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the arguments of a call by the tool's schema; None when nothing is.

    Arguments that the schema does not name are refused even where it does not forbid them.
    """
    known = tool.parameters.get("properties", {})
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        return f"{tool.name} has no argument {', '.join(unknown)}; it takes {', '.join(known) or 'none'}"
    for error in Draft202012Validator({"type": "object", **tool.parameters}).iter_errors(dict(arguments)):
        place = ".".join(map(str, error.path))
        return f"{tool.name}: {f'{place}: ' if place else ''}{error.message}"
    return None
