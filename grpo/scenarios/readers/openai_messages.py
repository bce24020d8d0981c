"""Chats in OpenAI's format: fine-tuning files, and logged requests with their responses.

    {"messages": […], "tools": […], "id": "a", "metadata": {"category": "delivery"}}
    {"request": {"messages": […], "tools": […]}, "response": {"choices": [{"message": {…}}]}}

`messages` alone is required; of several choices the first is the reply. A chat without an id is named by its file and
line. Not covered: `functions` and `function_call`, which tools replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.scenarios import LoggedUsers
from grpo.scenarios.logged_chat import ChatOrigin, LoggedChat, chat_fields
from grpo.scenarios.readers.openai_format import parse_messages, parse_tools, reply_of, with_reply
from grpo.scenarios.readers.record_file import read_objects
from grpo.scenarios.records import SourceRecord, convert_record, record_name

SOURCE = "openai_messages"
"""`metadata.source` of these scenarios."""


def read_openai_messages(path: Path, *, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one chat a record; a chat that is broken becomes a record with a problem."""
    for record in read_objects(path):
        yield convert_record(record, partial(_fields, name=record_name(path, record), users=users))


def _fields(data: dict[str, Any], *, name: str, users: LoggedUsers) -> dict[str, Any]:
    request = data.get("request")
    if isinstance(request, dict):
        messages = with_reply(request.get("messages"), [reply_of(data.get("response"))])
    else:
        if "messages" not in data:
            raise ValueError(f"no messages: the record has {', '.join(data) or 'no field'}")
        request, messages = data, data["messages"]
    chat = LoggedChat(messages=parse_messages(messages), tools=parse_tools(request.get("tools")))
    return {**chat_fields(chat, users=users), **origin(data, name, SOURCE).fields()}


def origin(data: dict[str, Any], name: str, source: str) -> ChatOrigin:
    """Origin of a record with an optional `id` and `metadata`."""
    given, metadata = data.get("id"), data.get("metadata")
    if given is not None and not isinstance(given, (str, int)):
        raise ValueError(f"id is not a text: {type(given).__name__}")
    if metadata is not None and not isinstance(metadata, dict):
        raise ValueError(f"metadata is not an object: {type(metadata).__name__}")
    return ChatOrigin(id=name if given in (None, "") else str(given), source=source, metadata=metadata or {})
