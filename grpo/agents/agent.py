"""What an agent is to those who talk to it: messages in, text out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.errors import DataError
from grpo.messages import Message, ToolCall

ChatMessage = Mapping[str, Any]
"""A message as chat interfaces write it: `role`, `content`, and `tool_calls` where there are some."""
Context = Mapping[str, Any]
"""What is known beside the conversation: `user_id`, `strategy`, `level`, `knowledge`; other keys are the caller's."""

_KEYS = {"role", "content", "tool_calls"}


class Agent(ABC):
    """Who speaks in a conversation."""

    @abstractmethod
    async def initialize(self) -> None:
        """Load what is needed to speak."""

    @abstractmethod
    async def generate_response(self, messages: Sequence[ChatMessage] | str, context: Context | None = None) -> str:
        """The reply to a conversation, or to one line of a user."""


def to_chat(message: Message) -> dict[str, Any]:
    """A message as chat interfaces write it."""
    return message.to_template()


def to_message(chat: ChatMessage) -> Message:
    """A message from the form of chat interfaces; raises `DataError` for another key, role or type."""
    unknown = set(chat) - _KEYS
    if unknown or "role" not in chat:
        raise DataError(
            f"a message has role, content and tool_calls; got {', '.join(sorted(map(str, chat))) or 'none'}"
        )
    content = chat.get("content") or ""
    if not isinstance(content, str):
        raise DataError(f"content of a {chat['role']} message is a {type(content).__name__}; give text")
    return Message(role=chat["role"], content=content, tool_calls=tuple(map(_call, chat.get("tool_calls") or ())))


def conversation(messages: Sequence[ChatMessage] | str) -> tuple[Message, ...]:
    """The messages of a conversation; a text is one line of a user. Raises `DataError` when there are none."""
    if isinstance(messages, str):
        return (Message(role="user", content=messages),)
    if not messages:
        raise DataError("there is nothing to answer: the conversation has no messages")
    return tuple(map(to_message, messages))


def _call(chat: Any) -> ToolCall:
    try:
        name, arguments = chat["function"]["name"], chat["function"]["arguments"]
    except (KeyError, TypeError) as error:
        raise DataError(f"a tool call is {{'function': {{'name', 'arguments'}}}}, got {str(chat)[:80]}") from error
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise DataError(f"a tool call has a name and an object of arguments, got {str(chat)[:80]}")
    return ToolCall(name=name, arguments=arguments)
