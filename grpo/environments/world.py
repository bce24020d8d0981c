"""World of tools: functions that share a state, (state, **arguments) → (new state, result)."""

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
"""(state, **arguments) → (new state, result), or an awaitable of it. The function gets a copy of the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Functions that share a state."""

    functions: Mapping[str, Function]
    """By tool name."""
    state_key: str | None = None
    """Key of the scenario's world that these functions act on. None is the whole world."""
    init_state: Callable[[State], State] = field(default=dict)
    """Initial state from the scenario's description of it."""
    verify_results: bool = False
    """The agent must have seen the results of expected calls that change nothing.

    A scenario with an expected call that fails in this world is not playable then."""


def describe_function(function: Function) -> Tool:
    """Describe a function as a tool, without its argument for the state.

    Raises `ConfigError` for an argument without an annotation, and for what is not a function.
    """
    if not callable(function):
        raise ConfigError(
            f"a tool is a {type(function).__name__}, not a function. Give functions (state, arguments…) that return "
            "the state and the result. A tool of another library is called inside such a function"
        )
    if not hasattr(function, "__name__"):
        raise ConfigError(
            f"a tool is a {type(function).__name__} without a name, by which the model calls it. Write a function that "
            "calls it"
        )
    if not (parameters := list(inspect.signature(function).parameters.values())):
        raise ConfigError(f"tool {function.__name__} takes no argument for the state. Write it as (state, arguments…)")
    state = parameters.pop(0)
    bare = next((parameter.name for parameter in parameters if parameter.annotation is parameter.empty), None)
    if bare is not None:
        raise ConfigError(f"tool {function.__name__}: argument {bare} has no annotation; the model must know its type")
    tool = tool_from_function(function.__name__, function)
    schema = dict(tool.parameters)
    schema["properties"] = {name: part for name, part in schema["properties"].items() if name != state.name}
    schema["required"] = [name for name in schema["required"] if name != state.name]
    return replace(tool, parameters=schema)
