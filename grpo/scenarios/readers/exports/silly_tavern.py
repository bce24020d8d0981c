"""Chats of SillyTavern: a file of JSON lines, whose first line is about the chat, and each other line is a message.

    {"user_name": "Ann", "character_name": "Desk", "create_date": "2026-11-20 @09h 00m", "chat_metadata": {}}
    {"name": "Ann", "is_user": true, "mes": "Where is order 7?", "extra": {}}
    {"name": "Desk", "is_user": false, "mes": "It is lost.", "swipes": ["No idea.", "It is lost."], "swipe_id": 1}

A swipe is another reply to the same message. `mes` is the one that is shown, and the others are left out. Messages that
are hidden from the model (`is_system`) are left out, but calls of tools are kept in such messages and are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_SWIPES = "message.swipes: other replies than the shown one"
_HIDDEN = "message.is_system: a message that the model did not read"
_SETTINGS = "record: names, dates and settings of SillyTavern"
_MEDIA = ("image", "images", "image_swipes", "media", "file", "files", "video", "audio")
HEADER = ("user_name", "character_name", "chat_metadata")
"""Keys of the first line."""


def is_chat_file(begin: Sequence[Mapping[str, Any] | None]) -> bool:
    """True for the first two lines of a chat: one about it, and a message."""
    if len(begin) < 2 or begin[0] is None or begin[1] is None:
        return False
    return any(name in begin[0] for name in HEADER) and not _is_line(begin[0]) and _is_line(begin[1])


def is_silly_tavern(data: Mapping[str, Any]) -> bool:
    """True for a chat with such lines as messages."""
    messages = data.get("messages")
    return isinstance(messages, list) and bool(messages) and all(map(_is_line, messages))


def _is_line(message: Any) -> bool:
    return isinstance(message, Mapping) and "mes" in message and ("is_user" in message or "name" in message)


def read_silly_tavern(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages in OpenAI's format, and what was left out."""
    ignored = [_SETTINGS]
    has_header = any(name in data for name in HEADER)
    messages = [
        message
        for number, line in enumerate(data["messages"], start=2 if has_header else 1)
        for message in _messages(line, number, ignored)
    ]
    return {"messages": messages}, ignored


def _messages(line: Mapping[str, Any], number: int, ignored: list[str]) -> Iterator[dict[str, Any]]:
    extra = line["extra"] if isinstance(line.get("extra"), Mapping) else {}
    if media := next((name for name in _MEDIA if extra.get(name)), None):
        raise ValueError(f"extra.{media} of line {number} cannot be read: only text is read. Delete the message")
    if isinstance(invocations := extra.get("tool_invocations"), list):
        yield from _invocations(invocations, number)
        return
    if line.get("is_system") is True:
        ignored.append(_HIDDEN)
        return
    text = line["mes"].get("message") if isinstance(line["mes"], Mapping) else line["mes"]
    if not isinstance(text, str):
        raise ValueError(f"mes of line {number} is not a text: {type(text).__name__}. Correct it, or delete the line")
    if isinstance(line.get("swipes"), list) and len(line["swipes"]) > 1:
        ignored.append(_SWIPES)
    if extra.get("type") == "narrator":
        yield {"role": "system", "content": text}
        return
    is_user = line.get("is_user")
    if not isinstance(is_user, bool):
        raise ValueError(f"is_user of line {number} is neither true nor false, so the speaker is unknown. Correct it")
    reasoning = extra.get("reasoning") if not is_user else None
    yield {
        "role": "user" if is_user else "assistant",
        "content": text,
        **({"name": line["name"]} if line.get("name") else {}),
        **({"reasoning": reasoning} if reasoning else {}),
    }


def _invocations(invocations: list[Any], number: int) -> Iterator[dict[str, Any]]:
    """A message with calls, and one for the result of each."""
    if not all(isinstance(call, Mapping) for call in invocations):
        raise ValueError(f"tool_invocations of line {number} are not objects. Delete the line")
    calls = [
        {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("parameters")}}
        for call in invocations
    ]
    yield {"role": "assistant", "content": None, "tool_calls": calls}
    yield from ({"role": "tool", "tool_call_id": call.get("id"), "content": call.get("result")} for call in invocations)
