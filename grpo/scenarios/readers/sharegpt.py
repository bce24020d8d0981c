"""Chats in ShareGPT's format, as FastChat and LLaMA-Factory write it.

    {"conversations": [{"from": "human", "value": "Where is order 7?"},
                       {"from": "function_call", "value": "{\\"name\\": \\"look_up\\", \\"arguments\\": {}}"},
                       {"from": "observation", "value": "lost"},
                       {"from": "gpt", "value": "It is lost."}],
     "system": "You run the order desk.", "tools": "[…]"}

Speakers are human or user, gpt or assistant, system, function_call, and observation or tool. A function call is a JSON
object, or a list of them; results follow in their order. Tools are a list, or one as JSON. Not covered: pictures, and
`<tool_call>` inside of the agent's text, which stays text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.config.scenarios import LoggedUsers
from grpo.messages import Role
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.logged_chat import MAX_MESSAGES, LoggedCall, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.readers.openai_format import parse_arguments, parse_tools
from grpo.scenarios.readers.openai_messages import origin
from grpo.scenarios.readers.record_file import read_objects
from grpo.scenarios.records import SourceRecord, convert_record, record_name

SOURCE = "sharegpt"
"""`metadata.source` of these scenarios."""
_ROLES: dict[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
_SHOWN = 80  # characters of a value in a reason


def read_sharegpt(path: Path, *, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one chat a record; a chat that is broken becomes a record with a problem."""
    for record in read_objects(path):
        yield convert_record(record, partial(_fields, name=record_name(path, record), users=users))


def _fields(data: dict[str, Any], *, name: str, users: LoggedUsers) -> dict[str, Any]:
    turns, system = data.get("conversations"), data.get("system")
    if "conversations" not in data:
        raise ValueError(f"no conversations: the record has {', '.join(data) or 'no field'}")
    if not isinstance(turns, list):
        raise ValueError(f"conversations are not a list: {type(turns).__name__}")
    if len(turns) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(turns)} messages, at most {MAX_MESSAGES}")
    if system is not None and not isinstance(system, str):
        raise ValueError(f"system is not a text: {type(system).__name__}")
    messages = [_message(turn, number) for number, turn in enumerate(turns)]
    if system:
        messages.insert(0, LoggedMessage(role="system", content=system))
    chat = LoggedChat(messages=tuple(messages), tools=parse_tools(data.get("tools")))
    return {**chat_fields(chat, users=users), **origin(data, name, SOURCE).fields()}


def _message(turn: Any, number: int) -> LoggedMessage:
    if not isinstance(turn, Mapping):
        raise ValueError(f"message is not an object: message {number} is {type(turn).__name__}")
    speaker, value = turn.get("from"), turn.get("value")
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise ValueError(f"unknown role: {excerpt(speaker, _SHOWN)} in message {number}; known are {', '.join(_ROLES)}")
    if not isinstance(value, str):
        raise ValueError(f"value is not a text: {type(value).__name__} in message {number}")
    if speaker == "function_call":
        return LoggedMessage(role="assistant", content="", calls=_calls(value, number))
    return LoggedMessage(role=_ROLES[speaker], content=value)


def _calls(text: str, number: int) -> tuple[LoggedCall, ...]:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).replace("line 1 ", "")
        raise ValueError(f"function call is not JSON: message {number}: {reason}") from error
    calls = []
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or not call["name"]:
            raise ValueError(f"tool call without a function name: message {number}")
        place = f"{excerpt(call['name'], _SHOWN)} in message {number}"
        calls.append(LoggedCall(name=call["name"], arguments=parse_arguments(call.get("arguments"), place)))
    return tuple(calls)
