"""Messages as LangChain serializes them, in OpenAI's format.

    {"lc": 1, "type": "constructor", "id": [..., "AIMessage"],
     "kwargs": {"content": "", "tool_calls": [{"name": "look_up", "args": {"order": "7"}, "id": "call_1"}]}}
    {"type": "human", "content": "Where is order 7?"}, {"type": "human", "data": {"content": "Where is order 7?"}}

Messages in OpenAI's format pass through unchanged. Only calls in the form `{"name", "args", "id"}` are rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.scenarios.readers.messages.api_dialects import split_parts
from grpo.scenarios.readers.messages.message_items import rewrite_items

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer"}
_API_CALLS = ("tool_calls", "function_call")
_SUFFIXES = ("MessageChunk", "Message")


def is_serialized(message: Mapping[str, Any]) -> bool:
    """True for these forms, which have a type instead of a role, and a content."""
    if "role" in message:
        return False
    fields = message.get("kwargs")
    if isinstance(fields, Mapping) and isinstance(message.get("id"), list):
        return "content" in fields
    data = message.get("data")
    return _is_kind(message.get("type")) and ("content" in message or (isinstance(data, Mapping) and "content" in data))


def _is_kind(value: Any) -> bool:
    return isinstance(value, str) and value in _ROLES


def openai_message(message: Any) -> Any:
    """The message with a `role`, and calls with a `function`. Other values stay, so that the parser refuses them."""
    if not isinstance(message, Mapping):
        return message
    names, fields = message.get("id"), message.get("kwargs")
    if isinstance(fields, Mapping) and isinstance(names, list) and names:
        name = str(names[-1])
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
        kind = name.removesuffix(suffix).lower()
    else:
        fields, kind = message, str(message.get("type", "")).lower()
        if kind in _ROLES and isinstance(message.get("data"), Mapping) and "content" not in message:
            fields = message["data"]
    fields = {name: value for name, value in fields.items() if name != "type" or not _is_kind(value)}
    role = fields.get("role", _ROLES.get(kind))
    calls, more = fields.get("tool_calls"), fields.get("additional_kwargs")
    if calls and isinstance(more, Mapping):  # the calls once more, as the API sent them
        fields["additional_kwargs"] = {name: value for name, value in more.items() if name not in _API_CALLS}
    rewritten = [_openai_call(call) for call in calls] if isinstance(calls, list) else calls
    return {**fields, "role": role, "tool_calls": rewritten}


def _openai_call(call: Any) -> Any:
    if not isinstance(call, Mapping) or "function" in call or "args" not in call:
        return call
    return {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call["args"]}}


def openai_messages(value: Any) -> Any:
    """A list of messages, or a list with one such list, as LangChain logs the calls of a chat model."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    value = rewrite_items(value)
    return [plain for message in value for plain in _plain(message)] if isinstance(value, list) else value


def _plain(message: Any) -> list[Any]:
    """Messages in OpenAI's format of one message, whose content may have calls and results of another API as parts."""
    rewritten = openai_message(message)
    return list(split_parts(rewritten)) if isinstance(rewritten, Mapping) else [rewritten]


def reply_messages(output: Any) -> list[Any]:
    """Messages of a reply: a completion's first choice, LangChain's first generation, `messages`, `message`, or the
    message itself. Empty if there is none of these."""
    if isinstance(output, list):
        return list(openai_messages(output))
    if not isinstance(output, Mapping):
        return []
    for name, inner in (("choices", "message"), ("generations", "message")):
        first: Any = output.get(name)
        while isinstance(first, list) and first:
            first = first[0]
        if isinstance(first, Mapping) and inner in first:
            return _plain(first[inner])
    if isinstance(output.get("messages"), list):
        return list(openai_messages(output["messages"]))
    if isinstance(output.get("message"), Mapping):
        return _plain(output["message"])
    return _plain(output) if "role" in output or "kwargs" in output else []
