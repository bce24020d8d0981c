"""Sessions of Gemini CLI: messages with the speaker as their `type`, and calls of tools together with their results.

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
    if message["type"] == _USER:
        yield {"role": "user", "content": message.get("content")}
        return
    calls = message.get("toolCalls") or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"toolCalls of message {number} is not a list of calls. Correct it, or delete the message")
    thoughts = [thought for thought in message.get("thoughts") or () if isinstance(thought, Mapping)]
    reasoning = "\n\n".join(str(thought.get("description", "")) for thought in thoughts)
    yield {
        "role": "assistant",
        "content": message.get("content") or None,
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
