"""Conversations of LM Studio, rewritten into messages with parts.

    {"name": "Orders", "systemPrompt": "Be kind.", "messages": [
        {"currentlySelected": 0, "versions": [{"type": "singleStep", "role": "user", "content": [
            {"type": "text", "text": "Where is order 7?"}]}]},
        {"currentlySelected": 0, "versions": [{"type": "multiStep", "role": "assistant", "steps": [
            {"type": "contentBlock", "content": [{"type": "toolCallRequest", "callId": 1, "name": "look_up", …}]},
            {"type": "contentBlock", "content": [{"type": "toolCallResult", "callId": 1, "content": "lost"}]},
            {"type": "contentBlock", "content": [{"type": "text", "text": "It is lost."}]}]}]}]}

If a message was edited or generated again, it has several versions. The selected one is read, because the user saw it
last. A block in the style of thinking is reasoning. A reply that was stopped or cut off is not a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.files.places import parsed

_OTHER_VERSIONS = "message.versions: other versions of a message than the selected one"
_SETTINGS = "record: settings and statistics of LM Studio"
_SYSTEM = "llm.prediction.systemPrompt"
_UNFINISHED = ("maxPredictedTokensReached", "contextLengthReached", "userStopped", "modelUnloaded", "failed")
"""Reasons for which a reply ended before the model ended it."""
_SHOWN_ONLY = ("status", "debugInfoBlock", "toolStatus")
"""Steps that only tell a page what happens."""
_SHOWN = 80  # characters of a value in a reason


def is_lm_studio(data: Mapping[str, Any]) -> bool:
    """True for a conversation of LM Studio. Each message has versions."""
    messages = data.get("messages")
    return isinstance(messages, list) and bool(messages) and all(map(_has_versions, messages))


def _has_versions(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("versions"), list)


def read_lm_studio(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with messages in a known format, and what was left out."""
    ignored = [_SETTINGS]
    messages = [_message(message, number, ignored) for number, message in enumerate(data["messages"])]
    system = _system(data)
    return {"messages": messages, **({"system": system} if system else {})}, ignored


def _system(data: Mapping[str, Any]) -> Any:
    """The system prompt of the chat. The settings of the chat come before the common one, unless they are off."""
    config = data.get("perChatPredictionConfig")
    fields = config.get("fields") if isinstance(config, Mapping) else None
    own = [
        field.get("value")
        for field in (fields if isinstance(fields, list) else ())
        if isinstance(field, Mapping) and field.get("key") == _SYSTEM
    ]
    is_off = data.get("usePerChatPredictionConfig") is False
    return next((text for text in ([] if is_off else own) if text), data.get("systemPrompt"))


def _message(message: Mapping[str, Any], number: int, ignored: list[str]) -> dict[str, Any]:
    versions, selected = message["versions"], message.get("currentlySelected", 0)
    if type(selected) is not int or not 0 <= selected < len(versions) or not isinstance(versions[selected], Mapping):
        raise ValueError(
            f"no version {excerpt(selected, _SHOWN)} of message {number}: it has {len(versions)}. Correct "
            "currentlySelected, or export the conversation again"
        )
    if len(versions) > 1:
        ignored.append(_OTHER_VERSIONS)
    version = versions[selected]
    steps = version.get("steps") if version.get("type") == "multiStep" else [{**version, "type": "contentBlock"}]
    if not isinstance(steps, list) or not all(isinstance(step, Mapping) for step in steps):
        raise ValueError(f"steps are not a list of objects: message {number}. Export the conversation again")
    parts = [part for step in steps for part in _parts(step, number)]
    is_cut = any(_stop_reason(step) in _UNFINISHED for step in steps)
    return {"role": version.get("role"), "content": parts, **({"weight": 0} if is_cut else {})}


def _parts(step: Mapping[str, Any], number: int) -> Iterator[Any]:
    kind, content = step.get("type"), step.get("content")
    if kind in _SHOWN_ONLY:
        return
    if kind != "contentBlock" or not isinstance(content, list):
        raise ValueError(f"step {excerpt(kind, _SHOWN)} cannot be read: message {number}. Delete it in LM Studio")
    style = step.get("style")
    is_thinking = isinstance(style, Mapping) and style.get("type") == "thinking"
    for part in content:
        if not isinstance(part, Mapping):
            yield part
        elif part.get("type") == "text":
            if part.get("isStructural") is not True:  # marks of the model's format
                yield {"type": "reasoning" if is_thinking else "text", "text": part.get("text")}
        elif part.get("type") == "toolCallResult":
            yield {**part, "content": _content(part.get("content"))}
        else:
            yield part


def _content(value: Any) -> Any:
    """Content of a result. A server of tools (MCP) writes a list of parts, which is JSON in a text here."""
    parts = parsed(value)
    is_list = isinstance(parts, list) and bool(parts) and all(isinstance(part, Mapping) for part in parts)
    return parts if is_list and all("type" in part for part in parts) else value


def _stop_reason(step: Mapping[str, Any]) -> Any:
    info = step.get("genInfo")
    stats = info.get("stats") if isinstance(info, Mapping) else None
    return stats.get("stopReason") if isinstance(stats, Mapping) else None
