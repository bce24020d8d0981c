"""Sessions of Gemini CLI: messages with the speaker as their `type`, and calls of tools together with their results.

    {"sessionId": …, "messages": [
        {"id": …, "type": "user", "content": "Where is order 7?"},
        {"id": …, "type": "gemini", "content": "", "thoughts": [{"subject", "description"}], "toolCalls": [
            {"id", "name", "args", "result": [{"functionResponse": {"response": {"output": "lost"}}}]}]},
        {"id": …, "type": "gemini", "content": "It is lost."}]}

Since 2026 a session is a file of JSON lines. The first line is about it, and each other line is a message or a change:

    {"sessionId": …, "projectHash": …, "startTime": …}
    {"id": "1", "type": "user", "content": [{"text": "Where is order 7?"}]}
    {"$set": {"lastUpdated": …}}
    {"$rewindTo": "1"}

A message that was written again, e.g. with its calls, replaces the one with the same id. `$rewindTo` removes a message
and all that follow, because the user went back. `$set` with `messages` has all messages so far, or a summary. The chat
is read up to a summary, because the model read it in the later turns instead of the earlier ones. Messages of the
types `info`, `warning` and `error` are shown to the user, and are left out because the model does not read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt

_AGENT, _USER = "gemini", "user"
_SHOWN = ("info", "warning", "error")
_REWOUND = "record.messages: other turns, which the user took back"
_LATER = "record: turns after a summary, which the model read instead of the earlier turns"
_RESULT = "functionResponse"
_SET, _REWIND = "$set", "$rewindTo"
_SETTINGS = "record: ids, dates and counts of tokens of Gemini CLI, and messages that only its user saw"


def is_session_log(begin: Sequence[Mapping[str, Any] | None]) -> bool:
    """True for the first two lines of a session: one about it, and a message or a change."""
    if len(begin) < 2 or begin[0] is None or begin[1] is None:
        return False
    return {"sessionId", "projectHash"} <= {*begin[0]} and "type" not in begin[0] and _is_entry(begin[1])


def is_session_entry(line: Mapping[str, Any]) -> bool:
    """True if this line changes the messages."""
    changes = line.get(_SET)
    return not isinstance(changes, Mapping) or "messages" in changes


def _is_entry(line: Any) -> bool:
    return isinstance(line, Mapping) and (
        _SET in line or _REWIND in line or line.get("type") in (_AGENT, _USER, *_SHOWN)
    )


def _after_changes(lines: Sequence[Mapping[str, Any]], ignored: list[str]) -> list[Any]:
    """Messages that are left after all changes of a session's lines, up to a summary of earlier turns."""
    messages: dict[str, Any] = {}
    for number, line in enumerate(lines):
        if _SET in line:
            given = line[_SET].get("messages") if isinstance(line[_SET], Mapping) else None
            if not isinstance(given, list) or not all(isinstance(message, Mapping) for message in given):
                continue
            whole = {_name(message, number): message for number, message in enumerate(given)}
            known, asked = _asked(messages), _asked(whole)
            if known - asked:
                ignored.append(_LATER)
                break
            messages = whole if asked - known or _replies(whole) > _replies(messages) else messages
        elif _REWIND in line:
            ids = [*messages]
            if (end := str(line[_REWIND])) not in ids:
                raise ValueError(f"{_REWIND} names no message: {excerpt(end, 80)}. Delete the line")
            messages = {name: messages[name] for name in ids[: ids.index(end)]}
            ignored.append(_REWOUND)
        else:
            messages[_name(line, number)] = line
    return [*messages.values()]


def _name(message: Mapping[str, Any], number: int) -> str:
    return str(message.get("id") or f"message {number}")


def _asked(messages: Mapping[str, Any]) -> set[str]:
    """Ids of the messages of the user, without the results of calls.

    A summary has other ids. If only results were shortened, the ids are the same, and the results as the model first
    read them are in the lines before.
    """
    return {
        name for name, message in messages.items() if message.get("type") == _USER and not _has_only(message, _RESULT)
    }


def _replies(messages: Mapping[str, Any]) -> int:
    return sum(message.get("type") == _AGENT for message in messages.values())


def _has_only(message: Mapping[str, Any], key: str) -> bool:
    """True if all parts of the message are of this kind."""
    parts = message.get("content")
    return isinstance(parts, list) and bool(parts) and all(isinstance(part, Mapping) and key in part for part in parts)


def is_gemini_cli(data: Mapping[str, Any]) -> bool:
    """True for a session with such messages."""
    messages = data.get("messages")
    if "sessionId" not in data or not isinstance(messages, list) or not messages:
        return False
    return all(map(_is_entry, messages)) and any(
        message.get("type") == _AGENT or _SET in message for message in messages
    )


def read_gemini_cli(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages in OpenAI's format, and what was left out."""
    ignored = [_SETTINGS]
    left = _after_changes(data["messages"], ignored)
    has_results = any(call.get("result") for message in left for call in _objects(message.get("toolCalls")))
    left = [message for message in left if not has_results or not _has_only(message, _RESULT)]
    messages = [message for number, given in enumerate(left) for message in _messages(given, number)]
    return {"id": data["sessionId"], "messages": messages}, ignored


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _messages(message: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    if message["type"] in _SHOWN:
        return
    if message["type"] == _USER:
        yield {"role": "user", "content": message.get("content")}
        return
    calls = message.get("toolCalls") or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"toolCalls of message {number} is not a list of calls. Correct it, or delete the message")
    content = message.get("content") or None
    if calls and isinstance(content, list):  # the content may have the calls once more, under other ids
        content = [part for part in content if not isinstance(part, Mapping) or "functionCall" not in part] or None
    thoughts = [thought for thought in message.get("thoughts") or () if isinstance(thought, Mapping)]
    reasoning = "\n\n".join(str(thought.get("description", "")) for thought in thoughts)
    yield {
        "role": "assistant",
        "content": content,
        **({"reasoning": reasoning} if reasoning else {}),
        **({"tool_calls": [_call(call) for call in calls]} if calls else {}),
    }
    for call in calls:
        if call.get("result"):
            yield {"role": "tool", "tool_call_id": call.get("id"), "content": _result(call["result"], number)}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("args")}}


def _result(parts: Any, number: int) -> str:
    """The text that the model read as the result of a call. Raises `ValueError` if a part is a file."""
    texts = []
    for part in parts if isinstance(parts, list) else [parts]:
        fields = part if isinstance(part, Mapping) else {"text": part}
        if "functionResponse" in fields:
            texts.append(_response(fields["functionResponse"]))
        elif isinstance(fields.get("text"), str):
            texts.append(fields["text"])
        else:
            raise ValueError(
                f"content is not text: part {', '.join(map(str, fields))} in message {number}. Only text is read"
            )
    return "\n".join(texts)


def _response(answer: Any) -> str:
    """The `output` of a response if it has nothing else, or the whole response as JSON, e.g. with an `error`."""
    response = answer.get("response") if isinstance(answer, Mapping) else answer
    output = response.get("output") if isinstance(response, Mapping) and {*response} == {"output"} else response
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
