"""Tools as functions: what the agent's own text asks for is checked, run, and answered with a tool message.

Whatever goes wrong is a result that the model sees and can react to:

    f is not there                    {"error": {"type": "unknown_tool", "message": …}}
    arguments against f's schema      {"error": {"type": "bad_arguments", …}}
    the text is no call               {"error": {"type": "bad_call", …}}
    f takes longer than timeout_s     {"error": {"type": "timeout", …}}
    f raises, or returns no JSON      {"error": {"type": "exception", …}}

An agent holds a toolbox of its own; an environment whose tools are functions can answer with one as well.
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

Problem = Literal["unknown_tool", "bad_arguments", "bad_call", "timeout", "exception", "too_many_rounds"]


class Toolbox:
    """Functions, sync or async, under the names by which they are called.

    `timeout_s` bounds each call. A sync function runs on a thread of its own, which nothing can stop: when it is late
    the model hears of a timeout, and the function still ends when it ends.
    """

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s {timeout_s} of a toolbox must be above 0")
        self.timeout_s = timeout_s
        self._functions: dict[str, Callable[..., Any]] = {}
        self._tools: dict[str, Tool] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What chat templates show the model, in order of registration."""
        return tuple(self._tools.values())

    def register(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a function. Its schema is read from its signature, its description from its docstring, if not given.

        Raises `ConfigError` for a name that is taken, something that cannot be called, or a schema that is none.
        """
        if not name or name in self._tools:
            raise ConfigError(f"tool name {name!r} is {'taken' if name else 'empty'}; give each tool a name of its own")
        if not callable(function):
            raise ConfigError(f"tool {name}: {function!r} cannot be called; give a function")
        self._tools[name] = tool_from_function(name, function, description=description, parameters=parameters)
        self._functions[name] = function

    async def answer(self, message: Message) -> Message | None:
        """What the tools say to a message: one result, or a list where it holds several calls; None without a call."""
        if message.malformed is not None:
            return tool_message(problem("bad_call", f"{message.malformed}; write one JSON object with name, arguments"))
        if not message.tool_calls:
            return None
        results = [await self.run(call) for call in message.tool_calls]
        return tool_message(results[0] if len(results) == 1 else results)

    async def run(self, call: ToolCall) -> Any:
        """The result of one call, or what was wrong with it."""
        function = self._functions.get(call.name)
        if function is None:
            return problem("unknown_tool", f"no tool {call.name!r}; there is {', '.join(self._tools) or 'none'}")
        arguments = dict(call.arguments)
        wrong = argument_error(self._tools[call.name], arguments)
        if wrong is not None:
            return problem("bad_arguments", wrong[:300])
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                if inspect.iscoroutinefunction(function):
                    result = await function(**arguments)
                else:
                    result = await asyncio.to_thread(function, **arguments)
            json.dumps(result)
        except Exception as failure:  # noqa: BLE001 — what a tool does wrong is for the model to see
            if limit.expired():
                return problem("timeout", f"{call.name} took longer than {self.timeout_s} s")
            return problem("exception", f"{type(failure).__name__}: {failure}"[:300])
        return result


def problem(kind: Problem, message: str) -> dict[str, Any]:
    """A result that says what went wrong."""
    return {"error": {"type": kind, "message": message}}


def tool_message(result: Any) -> Message:
    """A result as the model reads it."""
    return Message(role="tool", content=json.dumps(result, ensure_ascii=False))


def toolbox(tools: Sequence[Mapping[str, Any]], *, timeout_s: float = 30.0) -> Toolbox:
    """A toolbox of `{"name", "function"}`, with `description` and `parameters` where they are given.

    Raises `ConfigError` for another key.
    """
    box = Toolbox(timeout_s=timeout_s)
    for tool in tools:
        unknown = set(tool) - {"name", "function", "description", "parameters"}
        if unknown or not {"name", "function"} <= set(tool):
            raise ConfigError(f"a tool has name, function, description and parameters; got {', '.join(map(str, tool))}")
        box.register(
            tool["name"], tool["function"], description=tool.get("description"), parameters=tool.get("parameters")
        )
    return box
