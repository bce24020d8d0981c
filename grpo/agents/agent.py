"""Agent interface for programs: messages in OpenAI's chat format in, text out.

`MultiTurnAgent` implements it. Notebooks and programs have dicts instead of the messages of this package, and
`to_messages` converts them. Rollouts and `grpo serve` call `MultiTurnAgent.respond` instead, which calls
`generate_response` as well and keeps the tokens of the reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.logged_chat import to_conversation
from grpo.scenarios.readers.messages.openai_format import parse_messages

ChatMessage = Mapping[str, Any]
"""A message in OpenAI's chat format: `role`, `content`, optional `tool_calls`, `tool_call_id` of a result."""
Context = Mapping[str, Any]
"""Request context: `user_id`, `strategy`, `level` and `knowledge` are read. Other keys are for the caller's own use."""

_KEYS = {"role", "content", "tool_calls"}


class Agent(ABC):
    """Base class of agents: `initialize` once, then `generate_response` for each turn."""

    @abstractmethod
    async def initialize(self) -> None:
        """Load the policy."""

    @abstractmethod
    async def generate_response(self, messages: Sequence[ChatMessage] | str, context: Context | None = None) -> str:
        """Reply to a conversation. A string is one user message."""


def to_message(chat: ChatMessage) -> Message:
    """Convert a message in the form of chat templates. Raises `DataError` for an unknown key, role or type."""
    unknown = set(chat) - _KEYS
    if unknown or "role" not in chat:
        raise DataError(
            "a message needs role, and may have content and tool_calls. This one has "
            f"{', '.join(sorted(map(str, chat))) or 'none'}"
        )
    content = chat.get("content") or ""
    if not isinstance(content, str):
        raise DataError(f"content of a {chat['role']} message is a {type(content).__name__}. Give text")
    tool_calls = tuple(map(_to_tool_call, chat.get("tool_calls") or ()))
    return Message(role=chat["role"], content=content, tool_calls=tool_calls)


def to_messages(messages: Sequence[ChatMessage] | str) -> tuple[Message, ...]:
    """Convert a conversation from OpenAI's chat format. A string is one user message.

    Raises `DataError` if a message cannot be read, or if there is none.
    """
    if isinstance(messages, str):
        return (Message(role="user", content=messages),)
    messages = list(messages)
    if not messages:
        raise DataError("the conversation has no messages. Give at least one")
    if all(isinstance(message, Mapping) for message in messages):
        with suppress(DataError):  # the form of chat templates, in which each turn of a rollout comes
            return tuple(map(to_message, messages))
    try:
        return to_conversation(parse_messages([_as_mapping(message) for message in messages]))
    except ValueError as error:
        raise DataError(f"{error}. Write the messages in OpenAI's chat format") from error


def _as_mapping(message: Any) -> Any:
    """A message of OpenAI's client, e.g. a reply that is sent back, as a mapping."""
    return message.model_dump(exclude_none=True) if hasattr(message, "model_dump") else message


def _to_tool_call(chat: Any) -> ToolCall:
    try:
        name, arguments = chat["function"]["name"], chat["function"]["arguments"]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"a tool call needs the form {{'function': {{'name', 'arguments'}}}}, got {str(chat)[:80]}"
        ) from error
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise DataError(f"a tool call needs a name and an object of arguments, got {str(chat)[:80]}")
    return ToolCall(name=name, arguments=arguments)
