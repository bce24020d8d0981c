"""Sessions of Gemini CLI: a document whose messages have the type of who speaks, and calls together with their results.

    {"sessionId": …, "messages": [
        {"id": …, "type": "user", "content": "Where is order 7?"},
        {"id": …, "type": "gemini", "content": "", "thoughts": [{"subject", "description"}], "toolCalls": [
            {"id", "name", "args", "result": [{"functionResponse": {"response": {"output": "lost"}}}]}]},
        {"id": …, "type": "gemini", "content": "It is lost."}]}

Messages of the types `info`, `warning` and `error` are shown to the user, and are left out because the model does not
read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_AGENT, _USER = "gemini", "user"
_SHOWN = ("info", "warning", "error")
_SETTINGS = "record: ids, dates and counts of tokens of Gemini CLI, and messages that only its user saw"


def is_gemini_cli(data: Mapping[str, Any]) -> bool:
    """Is this a session with such messages?"""
    messages = data.get("messages")
    if "sessionId" not in data or not isinstance(messages, list) or not messages:
        return False
    kinds = [message.get("type") if isinstance(message, Mapping) else None for message in messages]
    return _AGENT in kinds and all(kind in (_AGENT, _USER, *_SHOWN) for kind in kinds)


def read_gemini_cli(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages in OpenAI's format, and what was left out."""
    messages = [message for number, given in enumerate(data["messages"]) for message in _messages(given, number)]
    return {"id": data["sessionId"], "messages": messages}, [_SETTINGS]


def _messages(message: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    if message["type"] in _SHOWN:
        return
    text = _text(message.get("content"), number)
    if message["type"] == _USER:
        yield {"role": "user", "content": text}
        return
    calls = message.get("toolCalls") or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"toolCalls of message {number} is not a list of calls. Correct it, or delete the message")
    thoughts = [thought for thought in message.get("thoughts") or () if isinstance(thought, Mapping)]
    reasoning = "\n\n".join(str(thought.get("description", "")) for thought in thoughts)
    yield {
        "role": "assistant",
        "content": text or None,
        **({"reasoning": reasoning} if reasoning else {}),
        **({"tool_calls": [_call(call) for call in calls]} if calls else {}),
    }
    for call in calls:
        if call.get("result"):
            yield {"role": "tool", "tool_call_id": call.get("id"), "content": _result(call["result"], number)}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("args")}}


def _result(parts: Any, number: int) -> str:
    """What the model read of a call: the text of `output`, the whole response, or the text of a part."""
    texts = []
    for part in parts if isinstance(parts, list) else [parts]:
        answer = part.get("functionResponse") if isinstance(part, Mapping) else None
        if answer is None:
            texts.append(_text(part, number))
            continue
        response = answer.get("response") if isinstance(answer, Mapping) else answer
        output = response.get("output") if isinstance(response, Mapping) and {*response} == {"output"} else response
        texts.append(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))
    return "\n".join(texts)


def _text(content: Any, number: int) -> str:
    """A text, or the texts of parts. Raises `ValueError` for a file."""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            shown = ", ".join(map(str, part)) if isinstance(part, Mapping) else type(part).__name__
            raise ValueError(f"content is not text: part {shown} in message {number}. Only text is read")
        texts.append(text)
    return "".join(texts)
