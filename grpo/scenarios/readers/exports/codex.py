"""Sessions of Codex: a file of JSON lines with one event each. Some events are what the model read and wrote.

    {"timestamp": …, "type": "session_meta", "payload": {"id": "0199a2b3", "base_instructions": {"text": "Be brief."}}}
    {"timestamp": …, "type": "response_item", "payload": {"type": "message", "role": "user", "content": […]}}
    {"timestamp": …, "type": "response_item", "payload": {"type": "function_call", "call_id", "name", "arguments"}}
    {"timestamp": …, "type": "event_msg", "payload": {"type": "token_count", …}}

The payloads of the type `response_item` are items of OpenAI's Responses API (`message_items`). Versions from before
autumn 2025 write each item as a line, without `payload`, after a first line with `id` and `instructions`. When the
context is full, Codex replaces the earlier turns with a summary. The chat is read up to this summary, because the model
read the summary in the later turns instead of the earlier turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ITEM, _COMPACTED = "response_item", "compacted"
_BARE = ("message", "reasoning", "function_call", "function_call_output", "local_shell_call", "custom_tool_call")
_SUMMARIES = ("compaction", "compaction_summary", "context_compaction")
_SKIPPED = ("ghost_snapshot", "other")
_CALLS = {"custom_tool_call": ("name", "input"), "local_shell_call": (None, "action")}
"""Calls that are not calls of a function: the key of the tool's name, and the key of its input."""
_EVENTS = "record: events of Codex, such as counts of tokens, and the instructions that a message repeats"
_LATER = "record: turns after a summary, which the model read instead of the earlier turns"


def is_session_file(begin: Sequence[Mapping[str, Any] | None]) -> bool:
    """True for the first two lines of a session: one about it, and an event or an item."""
    if len(begin) < 2 or begin[0] is None or begin[1] is None or not _is_header(begin[0]):
        return False
    return {"type", "payload"} <= {*begin[1]} or _is_bare(begin[1]) or "record_type" in begin[1]


def is_session_item(line: Mapping[str, Any]) -> bool:
    """True if this line is a part of the chat."""
    return line.get("type") in (_ITEM, _COMPACTED) or _is_bare(line)


def is_codex(data: Mapping[str, Any]) -> bool:
    """True for a session with its items as messages."""
    return _is_header(data) and isinstance(data.get("messages"), list)


def read_codex(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with items of the Responses API as messages, and what was left out."""
    about = data["payload"] if data.get("type") == "session_meta" else data
    ignored, messages = [_EVENTS], []
    base = about.get("base_instructions")
    if isinstance(base, Mapping) and isinstance(base.get("text"), str):
        messages.append({"role": "system", "content": base["text"]})
    for item in _items(data["messages"]):
        if item.get("type") in _SUMMARIES:
            ignored.append(_LATER)
            break
        messages.append(_plain(item))
    return {"id": about["id"], "messages": messages}, ignored


def _is_header(line: Mapping[str, Any]) -> bool:
    if line.get("type") == "session_meta":
        return isinstance(line.get("payload"), Mapping) and "id" in line["payload"]
    return {"id", "timestamp", "instructions"} <= {*line} and "type" not in line


def _is_bare(line: Mapping[str, Any]) -> bool:
    return line.get("type") in _BARE and "payload" not in line


def _items(lines: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if line.get("type") == _COMPACTED:
            yield {"type": _SUMMARIES[0]}
            continue
        item = line.get("payload") if line.get("type") == _ITEM else line
        if not isinstance(item, Mapping):
            raise ValueError(f"a {_ITEM} has no object under payload. Correct it, or delete the line")
        if item.get("type") not in _SKIPPED:
            yield item


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item as the Responses API has it. Calls of a shell or of a tool that takes a text become function calls."""
    kind = item.get("type")
    if (form := _CALLS.get(str(kind))) is not None:
        named, given = form
        arguments = item.get(given)
        return {
            "type": "function_call",
            "call_id": item.get("call_id") or item.get("id"),
            "name": item.get(named) if named is not None else "local_shell",
            "arguments": json.dumps(arguments if isinstance(arguments, Mapping) else {given: arguments}),
        }
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        whole = output.get("content") if isinstance(output, Mapping) else output
        return {"type": "function_call_output", "call_id": item.get("call_id"), "output": whole}
    if kind == "reasoning":
        return {"type": kind, "summary": item.get("summary") or ()}
    return dict(item)
