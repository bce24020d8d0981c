"""Messages of AI SDK 4, in which the text is the content, and also a part next to the calls. AI SDK 5 has only parts.

    {"role": "assistant", "content": "It is lost.", "parts": [
        {"type": "tool-invocation", "toolInvocation": {
            "state": "result", "toolCallId": "1", "toolName": "look_up", "args": {"order": "7"}, "result": "lost"}},
        {"type": "text", "text": "It is lost."}]}

Versions before 4.2 have `toolInvocations` instead of parts. If the content were read and not the parts, the calls would
be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INVOCATION, _INVOCATIONS = "tool-invocation", "toolInvocations"


def with_page_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with the parts of AI SDK 5, and without the content that repeats them. Others stay as they are."""
    content, parts, invocations = (message.get(key) for key in ("content", "parts", _INVOCATIONS))
    parts = parts if isinstance(parts, list) else []
    if isinstance(invocations, list) and all(isinstance(item, Mapping) and "toolName" in item for item in invocations):
        message = _without(message, _INVOCATIONS)
        if not any(_kind(part) == _INVOCATION for part in parts):
            parts = [*({"type": _INVOCATION, "toolInvocation": item} for item in invocations), *parts]
    if not parts or not all(map(_kind, parts)) or not isinstance(content, str | None):
        return message
    is_written = not content or any(_kind(part) == "text" for part in parts)
    texts = [] if is_written else [{"type": "text", "text": content}]
    return {**_without(message, "content"), "parts": [*map(_part, parts), *texts]}


def _kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else None


def _part(part: Any) -> Any:
    """A call of AI SDK 4 as a part of AI SDK 5. Other parts stay as they are."""
    invocation = part.get("toolInvocation") if part["type"] == _INVOCATION else None
    if not isinstance(invocation, Mapping):
        return part
    result = {"output": invocation.get("result")} if invocation.get("state") == "result" else {}
    call = {key: invocation.get(key) for key in ("toolCallId", "toolName", "state")}
    return {"type": f"tool-{invocation.get('toolName')}", **call, "input": invocation.get("args"), **result}


def _without(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}
