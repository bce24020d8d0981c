"""Lists of items that are not messages one by one, rewritten into OpenAI's messages.

    Responses     {"type": "function_call", "call_id", "name", "arguments"}, {"type": "function_call_output", …}
                  → one message with all calls of a step, and a message of the role tool for each result
    pydantic-ai   {"kind": "request", "parts": [{"part_kind": "user-prompt", "content"}]}
                  → a message for each part of a request, and one for a response

The items of OpenAI's Responses API are what its `input` and `output` hold, and what the Agents SDK stores in a session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt

_CALL, _RESULT, _REASONING = "function_call", "function_call_output", "reasoning"
_FIELDS = {_CALL: ("call_id", "name", "arguments"), _RESULT: ("call_id", "output"), _REASONING: ("summary",)}
"""Fields that each kind has. The calls that the API makes itself, such as `web_search_call`, have an id."""
_REQUEST_ROLES = {"system-prompt": "system", "user-prompt": "user", "tool-return": "tool", "retry-prompt": "user"}


def rewrite_items(value: Any) -> Any:
    """Messages, if the list has items of one of these kinds. Everything else stays unchanged.

    Raises `ValueError` if a list has a call that the API ran itself, such as a search.
    """
    if not has_items(value):
        return value
    if any(_is_item_of_responses(item) for item in value):
        return list(_of_responses(value))
    return [message for item in value for message in _of_parts(item)]


def has_items(value: Any) -> bool:
    """Return True if this is a list with items of one of these kinds."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return False
    return any(map(is_item, value))


def is_item(item: Mapping[str, Any]) -> bool:
    """True for an item of one of these kinds. A word under `type` is not enough: data sets name tasks there."""
    return _is_item_of_responses(item) or any("part_kind" in part for part in _parts(item))


def _is_item_of_responses(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    if "role" in item or not isinstance(kind, str):
        return False
    return {*_FIELDS.get(kind, ("id",) if kind.endswith("_call") else (kind,))} <= {*item}


def _of_responses(items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    step: dict[str, Any] = {}  # the agent's message that the items before this one belong to
    for item in items:
        kind = item.get("type", "message")
        if kind == _REASONING:
            thoughts = [part.get("text", "") for part in item.get("summary") or () if isinstance(part, Mapping)]
            if step.get("content") or step.get("tool_calls"):
                yield step
                step = {}
            step = {**step, "role": "assistant", "reasoning": "\n\n".join(thoughts)}
        elif kind == _CALL:
            call = {"id": item.get("call_id"), "function": {key: item.get(key) for key in ("name", "arguments")}}
            step = {**step, "role": "assistant", "tool_calls": [*step.get("tool_calls", ()), call]}
        elif kind == "message" and item.get("role") == "assistant" and "content" not in step:
            step = {
                **{key: field for key, field in item.items() if key != "type"},
                **step,
                "content": item.get("content"),
            }
        elif kind in (_RESULT, "message"):
            if step:
                yield step
                step = {}
            yield _result(item) if kind == _RESULT else _without_type(item)
        else:
            raise ValueError(f"item {excerpt(kind, 40)} cannot be read: the API made this call itself")
    if step.get("content") or step.get("tool_calls"):
        yield step


def _without_type(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: field for key, field in item.items() if key != "type"}


def _result(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}


def _parts(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = item.get("parts") if item.get("kind") in ("request", "response") and "role" not in item else None
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _of_parts(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Messages of a request or a response of pydantic-ai. A retry of a tool is the result of its call."""
    if item.get("kind") == "request":
        for part in _parts(item):
            role = _REQUEST_ROLES.get(str(part.get("part_kind")))
            if role is None:
                raise ValueError(f"part {excerpt(part.get('part_kind'), 40)} cannot be read")
            if part.get("tool_call_id") is not None and role in ("tool", "user"):
                yield {"role": "tool", "tool_call_id": part["tool_call_id"], "content": _text(part.get("content"))}
            else:
                yield {"role": role, "content": part.get("content")}
        return
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for part in _parts(item):
        kind = part.get("part_kind")
        if kind == "text":
            message["content"] = (message["content"] or "") + str(part.get("content") or "")
        elif kind == "thinking":
            message["reasoning"] = message.get("reasoning", "") + str(part.get("content") or "")
        elif kind == "tool-call":
            function = {"name": part.get("tool_name"), "arguments": part.get("args")}
            message.setdefault("tool_calls", []).append({"id": part.get("tool_call_id"), "function": function})
        else:
            raise ValueError(f"part {excerpt(kind, 40)} cannot be read")
    yield message


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
