"""Chats of Big-AGI: messages of fragments, each with a part that is a text, a call, a result or an attachment.

    {"id": "c", "systemPurposeId": "Generic", "messages": [
        {"role": "user", "fragments": [{"ft": "content", "part": {"pt": "text", "text": "Where is order 7?"}}]},
        {"role": "assistant", "fragments": [
            {"ft": "void", "part": {"pt": "ma", "aType": "reasoning", "aText": "7?"}},
            {"ft": "content", "part": {"pt": "tool_invocation", "id": "1", "invocation": {"type": "function_call", …}}},
            {"ft": "content", "part": {"pt": "tool_response", "id": "1", "response": {"name", "result"}}},
            {"ft": "content", "part": {"pt": "text", "text": "It is lost."}}]}]}

Versions before 2.0 have a `text` instead of fragments. A backup has a list of such chats under `conversations`. A
message that its user hid from the model (`aix.skip`) is left out. A reply that was stopped is not a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.readers.messages.speaker_turns import separate_texts

_SETTINGS = "record: titles, models and settings of Big-AGI"
_SKIPPED = "message.userFlags: a message that the model did not read"
_ERRORS = "message.fragments: errors that only the user saw"
_SKIP = "aix.skip"
_SHOWN = 80  # characters of a value in a reason


def is_big_agi(data: Mapping[str, Any]) -> bool:
    """True for a chat of Big-AGI."""
    messages = data.get("messages")
    return "systemPurposeId" in data and isinstance(messages, list) and all(map(_is_message, messages))


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and (isinstance(message.get("fragments"), list) or "text" in message)


def read_big_agi(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages of parts, and what was left out."""
    ignored = [_SETTINGS]
    messages = []
    for number, message in enumerate(data["messages"]):
        if _SKIP in (message.get("userFlags") or ()):
            ignored.append(_SKIPPED)
            continue
        if value_at(message, "metadata.inReferenceTo") or value_at(message, "metadata.inReplyToText"):
            raise ValueError(f"the text that message {number} refers to cannot be read. Delete the reference")
        is_cut = message.get("pendingIncomplete") is True or value_at(message, "generator.tokenStopReason") is not None
        fragments = message.get("fragments")
        is_list = isinstance(fragments, list)
        content = separate_texts(_parts(fragments, number, ignored)) if is_list else message.get("text")
        messages.append({"role": message.get("role"), "content": content, **({"weight": 0} if is_cut else {})})
    return {**({"id": data["id"]} if data.get("id") else {}), "messages": messages}, ignored


def _parts(fragments: list[Any], number: int, ignored: list[str]) -> Iterator[dict[str, Any]]:
    for fragment in fragments:
        part = fragment.get("part") if isinstance(fragment, Mapping) else None
        kind = part.get("pt") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(fragment, Mapping):
            raise ValueError(f"a fragment of message {number} has no part. Export the chat again")
        if fragment.get("ft") == "void" or kind == "ph":  # what the page shows and the model does not read
            if part.get("aType") == "reasoning":
                yield {"type": "reasoning", "text": part.get("aText")}
        elif kind == "text" and fragment.get("ft") == "content":
            yield {"type": "text", "text": part.get("text")}
        elif kind == "error":
            ignored.append(_ERRORS)
        elif kind in ("tool_invocation", "tool_response"):
            yield _tool_part(part, number)
        else:
            raise ValueError(f"content is not text: part {excerpt(kind, _SHOWN)} in message {number}. Delete it")


def _tool_part(part: Mapping[str, Any], number: int) -> dict[str, Any]:
    inner = part.get("invocation") if part["pt"] == "tool_invocation" else part.get("response")
    if not isinstance(inner, Mapping) or inner.get("type") != "function_call":
        kind = excerpt(inner.get("type") if isinstance(inner, Mapping) else inner, _SHOWN)
        raise ValueError(f"a call of type {kind}, which the API ran itself, cannot be read: message {number}")
    call = {"toolCallId": part.get("id"), "toolName": inner.get("name")}
    if part["pt"] == "tool_invocation":
        return {"type": "tool-call", **call, "input": inner.get("args") or {}}
    return {"type": "tool-result", **call, "output": inner.get("result")}
