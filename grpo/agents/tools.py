"""Tools as functions: tool calls in the agent's text are validated, run, and answered with a tool message.

Every error is a result that the model reads and can react to:

    f is not registered               {"error": {"type": "unknown_tool", "message": …}}
    arguments violate f's schema      {"error": {"type": "bad_arguments", …}}
    the call cannot be parsed         {"error": {"type": "bad_call", …}}
    f takes longer than timeout_s     {"error": {"type": "timeout", …}}
    f raises, or result is not JSON   {"error": {"type": "exception", …}}

An agent has its own toolbox. An environment can use one as well, if its tools are functions.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from grpo.errors import ConfigError
from grpo.messages import Message, Tool, ToolCall
from grpo.strict_json import NotStrictJSON, encode
from grpo.tools import argument_error, tool_from_function, typed_arguments
from grpo.user_failures import current_scenario, describe, is_exception, on_one_line, source_line, user_code

logger = logging.getLogger(__name__)
_logged: set[str] = set()
"""Places of exceptions that were logged by this process."""
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
        """Add a function. Schema and description default to its signature and docstring.

        Raises `ConfigError` if the name is taken, the object cannot be called, or the schema is invalid.
        """
        if not name or name in self._tools:
            raise ConfigError(f"tool name {name!r} is {'taken' if name else 'empty'}; give each tool a unique name")
        if not callable(function):
            raise ConfigError(f"tool {name}: {function!r} cannot be called; give a function")
        self._tools[name] = tool_from_function(name, function, description=description, parameters=parameters)
        self._functions[name] = function

    async def execute(self, message: Message) -> Message | None:
        """Run the calls of a message: one result, or a list for several calls, or None if the message has no call.

        A malformed call is the last one, and its result is an error.
        """
        if message.malformed is None and not message.tool_calls:
            return None
        results = [await self.run(call) for call in message.tool_calls]
        if message.malformed is not None:
            error = f"{message.malformed}; write its name and arguments in the form that the tools' description shows"
            results.append(error_result("bad_call", error))
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
        try:
            result = await call_function(function, (), arguments, name=call.name, timeout_s=self.timeout_s)
            encode(result)
        except ToolError as refusal:
            return error_result("exception", on_one_line(str(refusal), longest=300))
        except FunctionFailed as failure:
            return failure.result
        except NotStrictJSON as error:
            return error_result("exception", f"the result is {error}"[:300])
        return result


class ToolError(Exception):
    """Refusal by a tool's function: the model gets the reason as a result, and a state stays as it was."""


class FunctionFailed(Exception):
    """Failed call of a tool's function, with the result that the model reads."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(result["error"]["message"])
        self.result = result


async def call_function(
    function: Callable[..., Any], given: Sequence[Any], arguments: Mapping[str, Any], *, name: str, timeout_s: float
) -> Any:
    """Call a tool's function with the `given` values and the model's arguments. A sync function runs on a thread.

    Raises `ToolError` if the function does or its types refuse an argument, and `FunctionFailed` for a timeout and for
    any other exception. The first exception of each line of code is logged with its place.
    """
    try:
        arguments = typed_arguments(function, arguments)
    except ValueError as problem:
        raise ToolError(f"{name}: {problem}") from problem
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            with user_code(f"tool {name}", passes=is_exception):
                if inspect.iscoroutinefunction(function):
                    return await function(*given, **arguments)
                returned = await call_on_thread(function, *given, **arguments)
                return await returned if inspect.isawaitable(returned) else returned
    except ToolError:
        raise
    except Exception as error:
        if limit.expired():
            raise FunctionFailed(error_result("timeout", f"{name} took longer than {timeout_s} s")) from None
        _log_once(name, error)
        raise FunctionFailed(error_result("exception", describe(error, with_place=False))) from error


async def call_on_thread(function: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
    """Call a sync function on its own thread, in a copy of this context.

    `asyncio.to_thread` has a few threads for all calls, so that a call that hangs delays the others and keeps the
    process from ending. Here a function that was given up ends with the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(error: BaseException | None, value: Any) -> None:
        if not future.done():  # the caller may have given it up
            future.set_result(value) if error is None else future.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        value = None
        try:
            value = function(*given, **arguments)
        except (StopIteration, GeneratorExit) as raised:  # which mean something else to who awaits a future
            error = RuntimeError(f"the function raised {type(raised).__name__}")
            error.__cause__ = raised
        except BaseException as raised:  # noqa: BLE001 - it is raised where the call is awaited
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, error, value)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    return await future


def _log_once(name: str, error: Exception) -> None:
    place = source_line(error)
    if place not in _logged:
        _logged.add(place)
        scenario = current_scenario.get()
        shown = describe(error, with_place=False) + ("" if scenario is None else f", in scenario {scenario}")
        logger.warning("tool %s, %s: %s. The model reads it as a result", name, place, shown)


def error_result(kind: ToolErrorType, message: str) -> dict[str, Any]:
    """Result of a failed call."""
    return {"error": {"type": kind, "message": message}}


def tool_message(result: Any) -> Message:
    """Tool message with a result as JSON."""
    return Message(role="tool", content=encode(result))


def make_toolbox(tools: Sequence[Mapping[str, Any]], *, timeout_s: float = 30.0) -> Toolbox:
    """Make a toolbox from dicts with `name` and `function`, optionally `description` and `parameters`.

    Raises `ConfigError` for another key.
    """
    toolbox = Toolbox(timeout_s=timeout_s)
    for tool in tools:
        unknown = set(tool) - {"name", "function", "description", "parameters"}
        if unknown or not {"name", "function"} <= set(tool):
            raise ConfigError(
                "a tool needs name and function, and may have description and parameters. This one has "
                f"{', '.join(map(str, tool))}"
            )
        toolbox.register(
            tool["name"], tool["function"], description=tool.get("description"), parameters=tool.get("parameters")
        )
    return toolbox
