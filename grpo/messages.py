"""Messages, tool calls and tools of a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from grpo.errors import DataError
from grpo.strict_json import NotStrictJSON, decode, encode

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)

TOOL_CALL_OPEN, TOOL_CALL_CLOSE = "<tool_call>", "</tool_call>"
THINK, END_OF_THINK = "<think>", "</think>"
"""Marks of the reasoning before a reply, as in DeepSeek-R1 (arXiv 2501.12948)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Function that the agent may call. `parameters` is the JSON Schema of its arguments."""

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
    repaired: str | None = field(default=None, compare=False)
    """Repair that the parser made, such as `no arguments`, or None if the model wrote the call in its format."""

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": dict(self.arguments)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `malformed` is the reason why its tool call could not be parsed."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: str | None = None
    reasoning: str | None = None
    """Reasoning before the reply. The environment and the user do not see it."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise DataError(f"message role {self.role!r} is unknown. Use one of {', '.join(ROLES)}")

    def __getitem__(self, name: str) -> NoReturn:
        """Raise `TypeError` with the attribute to write, because rewards of other libraries read messages as dicts."""
        raise TypeError(f"a Message has attributes and no keys. Write message.{name}")

    def to_template(self) -> dict[str, Any]:
        """Format of chat templates for `messages`."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.tool_calls
            ]
        return message


def results_message(results: Sequence[str]) -> Message:
    """Message with the unchanged result of one call, or with a JSON list of the results of several calls."""
    if len(results) == 1:
        return Message(role="tool", content=results[0])
    return Message(role="tool", content=encode([_value(result) for result in results]))


def _value(result: str) -> Any:
    try:
        return decode(result)
    except NotStrictJSON:
        return result


def count_calls(messages: Iterable[Message]) -> dict[str, int]:
    """Numbers of calls, of repaired calls, and of messages with a malformed call."""
    messages = list(messages)
    calls = [call for message in messages for call in message.tool_calls]
    return {
        "parsed": len(calls),
        "repaired": sum(call.repaired is not None for call in calls),
        "malformed": sum(message.malformed is not None for message in messages),
    }


def split_reasoning(text: str) -> tuple[str | None, str]:
    """Split a reply into reasoning and answer. If the reasoning is unfinished, the answer is empty.

    '<think>x</think>y' → 'x', 'y'     'x</think>y' → 'x', 'y'     the template may have opened it
    '<think>x'          → 'x', ''      'y'          → None, 'y'
    """
    before, closed, after = text.partition(END_OF_THINK)
    if closed:
        return before.strip().removeprefix(THINK).strip(), after.strip()
    if before.lstrip().startswith(THINK):
        return before.strip().removeprefix(THINK).strip(), ""
    return None, text
