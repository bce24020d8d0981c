"""Tool servers of the package `verifiers`, called in this process instead of over MCP."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import verifiers.v1 as vf
from pydantic_core import to_json
from verifiers.v1.mcp import server as mcp
from verifiers.v1.mcp.toolset import Toolset
from verifiers.v1.utils.decorators import (
    discover_decorated,
)

from grpo.errors import ConfigError
from grpo.messages import Tool, ToolCall
from grpo.strict_json import encode
from grpo.tools import argument_error, tool_from_function


class ServedTools:
    """Tools of some tool servers, by the names under which MCP would offer them: `<server>_<tool>`."""

    def __init__(self, toolsets: Sequence[Toolset[Any, Any]]) -> None:
        self._toolsets = list(map(_checked, toolsets))
        self._functions: dict[str, Callable[..., Any]] = {}
        self._described: dict[str, Tool] = {}
        for toolset in self._toolsets:
            for function in discover_decorated(toolset, "tool"):
                name = getattr(function, "tool_name", None) or function.__name__
                name = f"{toolset.server_name}_{name}" if toolset.server_name else name
                described = tool_from_function(name, function, description=inspect.getdoc(function) or "")
                self._functions[name] = function
                self._described[name] = replace(described, name=name)
        self._ready = False
        self._lock = asyncio.Lock()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Descriptions, in order of the servers."""
        return tuple(self._described.values())

    async def set_up(self, data: vf.TaskData | None = None) -> None:
        """Set the servers up once, and if a task is given, for this task."""
        async with self._lock:
            for toolset in tuple(self._toolsets):
                if not self._ready:
                    await toolset.setup()
                if data is not None:
                    await toolset.setup_task(data)
            self._ready = True

    def has(self, name: str) -> bool:
        """Return True for a tool of these servers."""
        return name in self._functions

    async def call(self, call: ToolCall, state: vf.State) -> str:
        """Text of a call's result, or of its exception. Tools read and write `state` as `self.state`."""
        problem = argument_error(self._described[call.name], call.arguments)
        if problem is not None:
            return f"Error executing tool {call.name}: {problem}"
        token = mcp._call_state.set(state)
        try:
            returned = self._functions[call.name](**call.arguments)
            return _text(await returned if inspect.isawaitable(returned) else returned)
        except Exception as error:  # noqa: BLE001 — the model reads a tool's exception, as over MCP
            return f"Error executing tool {call.name}: {error}"
        finally:
            mcp._call_state.reset(token)


def _checked(toolset: Toolset[Any, Any]) -> Toolset[Any, Any]:
    """Return a tool server that can run in this process. Raises `ConfigError` for another one."""
    name, config = type(toolset).__name__, toolset.config
    runtime = getattr(getattr(config, "runtime", None), "type", "subprocess")
    if getattr(config, "url", None) or runtime != "subprocess":
        raise ConfigError(
            f"tool server {name} runs in {runtime} or at an address, which is not supported. Use a tool server that "
            "runs in the process of the rollout"
        )
    if type(toolset).register is not Toolset.register:
        raise ConfigError(
            f"tool server {name} registers tools itself, which is not supported. Mark the tools with vf.tool"
        )
    return toolset


def _text(result: Any) -> str:
    """Result as MCP shows it: texts unchanged, one item of a list per line, other values as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list | tuple):
        return "\n".join(map(_text, result))
    return "" if result is None else to_json(result, fallback=str, indent=2).decode()


def arguments_text(call: ToolCall) -> str:
    """Arguments of a call as a model writes them."""
    return encode(dict(call.arguments))
