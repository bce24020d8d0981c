"""Worlds: functions that share a state, (state, **arguments) → (new state, result)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.errors import ConfigError
from grpo.messages import Tool
from grpo.tools import tool_from_function

State = dict[str, Any]
Function = Callable[..., Any]
"""(state, **arguments) → (new state, result), or an awaitable of it. The state that it is given is its own copy."""


class ToolError(Exception):
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
    """Whether the results of expected calls that change nothing must have been seen by the agent.

    Then the world must make every expected call, or the scenario is not playable."""


def describe_function(function: Function) -> Tool:
    """The tool that a world's function is: the state is no argument of it.

    Raises `ConfigError` for an argument without an annotation.
    """
    state, *parameters = inspect.signature(function).parameters.values()
    bare = next((parameter.name for parameter in parameters if parameter.annotation is parameter.empty), None)
    if bare is not None:
        raise ConfigError(f"tool {function.__name__}: argument {bare} has no annotation; the model must know its type")
    tool = tool_from_function(function.__name__, function)
    schema = dict(tool.parameters)
    schema["properties"] = {name: part for name, part in schema["properties"].items() if name != state.name}
    schema["required"] = [name for name in schema["required"] if name != state.name]
    return replace(tool, parameters=schema)
