"""Messages, tool calls and tools of a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from grpo.errors import DataError

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Function that the agent may call; `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def to_template(self) -> dict[str, Any]:
        """Format of chat templates for `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """Tool call in the text of the agent."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; `malformed` is the reason why its tool call could not be parsed."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None
    reasoning: str | None = None
    """Reasoning before the reply; the environment and the user do not see it."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise DataError(f"message role {self.role!r} is unknown; use one of {', '.join(ROLES)}")

    def to_template(self) -> dict[str, Any]:
        """Format of chat templates for `messages`."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.tool_calls
            ]
        return message
