"""Tools as functions: tool calls in the agent's text are validated, run, and answered with a tool message.

Every error is a result that the model reads and can react to:

    f is not registered               {"error": {"type": "unknown_tool", "message": …}}
    arguments violate f's schema      {"error": {"type": "bad_arguments", …}}
    the call cannot be parsed         {"error": {"type": "bad_call", …}}
    f takes longer than timeout_s     {"error": {"type": "timeout", …}}
    f raises, or result is not JSON   {"error": {"type": "exception", …}}

An agent has a toolbox of its own; an environment whose tools are functions can use one as well.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from grpo.errors import ConfigError
from grpo.messages import Message, Tool, ToolCall
from grpo.tools import argument_error, tool_from_function

ToolErrorType = Literal["unknown_tool", "bad_arguments", "bad_call", "timeout", "exception", "too_many_rounds"]


class Toolbox:
    """Registry of sync and async functions by tool name.

    `timeout_s` bounds each call. A sync function runs on a thread, which cannot be cancelled: after a timeout the model
    reads the error, while the function runs to its end.
    """

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s {timeout_s} of a toolbox must be above 0")
        self.timeout_s = timeout_s
        self._functions: dict[str, Callable[..., Any]] = {}
        self._tools: dict[str, Tool] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tool descriptions for the chat template, in order of registration."""
        return tuple(self._tools.values())

    def register(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a function; schema and description default to its signature and docstring.

        Raises `ConfigError` for a duplicate name, an object that is not callable, or an invalid schema.
        """
        if not name or name in self._tools:
            raise ConfigError(f"tool name {name!r} is {'taken' if name else 'empty'}; give each tool a unique name")
        if not callable(function):
            raise ConfigError(f"tool {name}: {function!r} cannot be called; give a function")
        self._tools[name] = tool_from_function(name, function, description=description, parameters=parameters)
        self._functions[name] = function

    async def execute(self, message: Message) -> Message | None:
        """Run the calls of a message: one result, or a list for several calls; None without a call."""
        if message.malformed is not None:
            error = f"{message.malformed}; write its name and arguments in the form that the tools' description shows"
            return tool_message(error_result("bad_call", error))
        if not message.tool_calls:
            return None
        results = [await self.run(call) for call in message.tool_calls]
        return tool_message(results[0] if len(results) == 1 else results)

    async def run(self, call: ToolCall) -> Any:
        """Run one call and return its result, or an error result."""
        function = self._functions.get(call.name)
        if function is None:
            return error_result("unknown_tool", f"no tool {call.name!r}; there is {', '.join(self._tools) or 'none'}")
        arguments = dict(call.arguments)
        violation = argument_error(self._tools[call.name], arguments)
        if violation is not None:
            return error_result("bad_arguments", violation[:300])
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                if inspect.iscoroutinefunction(function):
                    result = await function(**arguments)
                else:
                    result = await asyncio.to_thread(function, **arguments)
            json.dumps(result)
        except Exception as error:  # noqa: BLE001 — the model reads a tool's exception
            if limit.expired():
                return error_result("timeout", f"{call.name} took longer than {self.timeout_s} s")
            return error_result("exception", f"{type(error).__name__}: {error}"[:300])
        return result


def error_result(kind: ToolErrorType, message: str) -> dict[str, Any]:
    """Result of a failed call."""
    return {"error": {"type": kind, "message": message}}


def tool_message(result: Any) -> Message:
    """Tool message with a result as JSON."""
    return Message(role="tool", content=json.dumps(result, ensure_ascii=False))


def make_toolbox(tools: Sequence[Mapping[str, Any]], *, timeout_s: float = 30.0) -> Toolbox:
    """Make a toolbox from dicts with `name` and `function`, optionally `description` and `parameters`.

    Raises `ConfigError` for another key.
    """
    toolbox = Toolbox(timeout_s=timeout_s)
    for tool in tools:
        unknown = set(tool) - {"name", "function", "description", "parameters"}
        if unknown or not {"name", "function"} <= set(tool):
            raise ConfigError(f"a tool has name, function, description and parameters; got {', '.join(map(str, tool))}")
        toolbox.register(
            tool["name"], tool["function"], description=tool.get("description"), parameters=tool.get("parameters")
        )
    return toolbox
