"""Exports of LobeChat: all messages in one list, of which each names its session, topic and thread.

    {"exportType": "all", "version": 7, "state": {
        "sessions": [{"id": "s", "config": {"systemRole": "Be kind."}}],
        "messages": [
            {"sessionId": "s", "topicId": "t", "role": "user", "content": "Where is order 7?"},
            {"sessionId": "s", "topicId": "t", "role": "assistant", "content": "", "tools": [
                {"id": "1", "identifier": "shop", "apiName": "look_up", "arguments": "{\\"order\\": \\"7\\"}"}]},
            {"sessionId": "s", "topicId": "t", "role": "tool", "tool_call_id": "1", "content": "lost"}, …]}}

Each topic is a chat, and so are the messages of a session that have no topic. Files, pictures and answers from a
knowledge base quarantine their chat, and so does a thread, because it continues messages of the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from grpo.data_errors import excerpt, try_call
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.times import instant

_SETTINGS = "record: names, dates and settings of LobeChat"
_MEDIA = ("files", "fileList", "imageList", "videoList", "chunksList")
_PLACES = ("sessionId", "topicId", "threadId")
_SESSION = "session"
_SHOWN = 80  # characters of a value in a reason


def lobe_chats(document: Mapping[str, Any]) -> list[Any]:
    """Chats of an export, each with its session. Empty for every other document."""
    messages = value_at(document, "state.messages") if "exportType" in document else None
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return []
    sessions = value_at(document, "state.sessions")
    given = sessions if isinstance(sessions, list) else []
    by_id = {str(item.get("id")): item for item in given if isinstance(item, Mapping)}
    chats: dict[tuple[str, ...], list[Any]] = {}
    for message in messages:
        chats.setdefault(tuple(str(message.get(place) or "") for place in _PLACES), []).append(message)
    return [
        {"id": "/".join(name for name in names if name), _SESSION: by_id.get(names[0], {}), "messages": _in_order(chat)}
        for names, chat in chats.items()
    ]


def _in_order(messages: list[Any]) -> list[Any]:
    """Messages by their time. If one of them has no time that can be read, they stay in the order of the file."""
    times = [try_call(partial(instant, message.get("createdAt"))) for message in messages]
    if not all(isinstance(time, float) for time in times):
        return messages
    return [message for _, message in sorted(zip(times, messages, strict=True), key=lambda pair: pair[0])]  # type: ignore[arg-type, return-value]


def is_lobe_chat(data: Mapping[str, Any]) -> bool:
    """True for a chat of such an export."""
    return isinstance(data.get(_SESSION), Mapping) and isinstance(data.get("messages"), list)


def read_lobe_chat(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The messages in OpenAI's format, with the system prompt of the session."""
    if any(message.get("threadId") for message in data["messages"]):
        raise ValueError("a thread continues messages of its topic, which are another chat. Export the topic only")
    messages = [message for number, given in enumerate(data["messages"]) for message in _messages(given, number)]
    system = value_at(data[_SESSION], "config.systemRole")
    return {"id": data["id"], "messages": messages, **({"system": system} if system else {})}, [_SETTINGS]


def _messages(message: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    if media := next((name for name in _MEDIA if message.get(name)), None):
        raise ValueError(f"{media} of message {number} cannot be read: only text is read. Delete the message")
    role, content = message.get("role"), message.get("content")
    plugin = message["plugin"] if isinstance(message.get("plugin"), Mapping) else {}
    if role == "function":  # versions before tools: the call is in the message of its result
        call = _call({**plugin, "id": f"call {number}"}, number)
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": content},
        ]
    if role == "tool":
        return [{"role": role, "tool_call_id": message.get("tool_call_id"), "content": content}]
    tools = message.get("tools") or []
    if not isinstance(tools, list):
        raise ValueError(f"tools of message {number} are not a list: {type(tools).__name__}. Export the chat again")
    reasoning = value_at(message, "reasoning.content")
    return [
        {
            "role": role,
            "content": content,
            **({"name": message["agentId"]} if message.get("agentId") and role == "assistant" else {}),
            **({"tool_calls": [_call(tool, number) for tool in tools]} if tools else {}),
            **({"reasoning": reasoning} if reasoning else {}),
            **({"weight": 0} if message.get("error") else {}),
        }
    ]


def _call(tool: Any, number: int) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("apiName"), str):
        raise ValueError(f"a call of message {number} has no apiName: {excerpt(tool, _SHOWN)}. Export the chat again")
    return {"id": tool.get("id"), "function": {"name": tool["apiName"], "arguments": tool.get("arguments")}}
