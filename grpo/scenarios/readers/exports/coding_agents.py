"""Sessions of the coding agents goose and opencode, and the refusals of other agents.

    goose       {"id": "s", "working_dir": "/shop"}, then lines, or a list under `conversation`:
                {"role": "assistant", "content": [
                    {"type": "toolRequest", "id": "1", "toolCall": {"value": {"name", "arguments"}}}]}
                {"role": "user", "content": [
                    {"type": "toolResponse", "id": "1", "toolResult": {"value": [{"type": "text", "text": "lost"}]}}]}
    opencode    {"info": {"id": "s"}, "messages": [{"info": {"role": "assistant"}, "parts": [
                    {"type": "tool", "callID": "1", "tool": "look_up", "state": {"input": {…}, "output": "lost"}},
                    {"type": "text", "text": "It is lost."}]}]}

A session is read up to its first summary, because the model read the summary in the later turns instead of the earlier
turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.files.places import value_at

Read = tuple[dict[str, Any], list[str]]
_LATER = "record: turns after a summary, which the model read instead of the earlier turns"
_GOOSE_KEYS = ("working_dir", "description")
_SKIPPED_BY_GOOSE = ("systemNotification", "toolConfirmationRequest", "redactedThinking", "summarizationRequested")
_SKIPPED_BY_OPENCODE = ("step-start", "step-finish", "snapshot", "patch", "retry")
_SHOWN = 80  # characters of a value in a reason


def is_goose_file(begin: Sequence[Mapping[str, Any] | None]) -> bool:
    """True for the first two lines of a session of goose: one about it, and a message."""
    if len(begin) < 2 or begin[0] is None or begin[1] is None:
        return False
    return {*_GOOSE_KEYS} <= {*begin[0]} and "role" not in begin[0] and {"role", "content"} <= {*begin[1]}


def is_goose(data: Mapping[str, Any]) -> bool:
    """True for a session of goose."""
    return "working_dir" in data and _goose_messages(data) is not None


def _goose_messages(data: Mapping[str, Any]) -> list[Any] | None:
    messages = next((data[name] for name in ("messages", "conversation") if isinstance(data.get(name), list)), None)
    is_whole = messages is not None and all(
        isinstance(message, Mapping) and isinstance(message.get("content"), list) for message in messages
    )
    return messages if is_whole else None


def read_goose(data: Mapping[str, Any]) -> Read:
    """Messages with parts, up to the first summary, which the user does not see."""
    ignored = ["record: names, dates and settings of goose"]
    messages = []
    for number, message in enumerate(_goose_messages(data) or ()):
        if value_at(message, "metadata.userVisible") is False:
            ignored.append(_LATER)
            break
        parts = [part for item in message["content"] for part in _goose_parts(item, number)]
        messages.append({"role": message.get("role"), "content": parts})
    return {**({"id": data["id"]} if data.get("id") else {}), "messages": messages}, ignored


def _goose_parts(part: Any, number: int) -> Iterator[Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("text", "thinking"):
        yield part
    elif kind == "toolRequest":
        call = _value(part.get("toolCall"), number)
        yield {"type": "tool-call", "toolCallId": part.get("id"), "toolName": call.get("name"),
               "input": call.get("arguments")}  # fmt: skip
    elif kind == "toolResponse":
        result = part.get("toolResult")
        if isinstance(result, Mapping) and result.get("status") == "error":
            yield {"type": "tool-result", "toolCallId": part.get("id"), "output": str(result.get("error"))}
            return
        value = result.get("value") if isinstance(result, Mapping) else None
        output = value.get("content") if isinstance(value, Mapping) else value
        yield {"type": "tool-result", "toolCallId": part.get("id"), "output": output}
    elif kind not in _SKIPPED_BY_GOOSE:
        raise ValueError(f"content is not text: part {excerpt(kind, _SHOWN)} in message {number}. Delete the message")


def _value(call: Any, number: int) -> Mapping[str, Any]:
    value = call.get("value") if isinstance(call, Mapping) else None
    if not isinstance(value, Mapping):
        raise ValueError(f"a call of message {number} could not be parsed by goose. Delete the message")
    return value


def is_opencode(data: Mapping[str, Any]) -> bool:
    """True for a session of opencode, as `opencode export` writes it."""
    messages = data.get("messages")
    return isinstance(data.get("info"), Mapping) and isinstance(messages, list) and all(map(_is_of_opencode, messages))


def _is_of_opencode(message: Any) -> bool:
    if not isinstance(message, Mapping):
        return False
    return isinstance(message.get("info"), Mapping) and isinstance(message.get("parts"), list)


def read_opencode(data: Mapping[str, Any]) -> Read:
    """Messages with parts, up to the first summary."""
    ignored = ["record: names, dates and settings of opencode"]
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(data["messages"]):
        info = message["info"]
        kinds = [part.get("type") if isinstance(part, Mapping) else None for part in message["parts"]]
        if info.get("summary") is True or "compaction" in kinds:
            ignored.append(_LATER)
            break
        parts = [part for item in message["parts"] for part in _opencode_parts(item, number)]
        is_cut = bool(info.get("error"))
        messages.append({"role": info.get("role"), "content": parts, **({"weight": 0} if is_cut else {})})
    named = {"id": data["info"]["id"]} if data["info"].get("id") else {}
    return {**named, "messages": messages}, ignored


def _opencode_parts(part: Any, number: int) -> Iterator[Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _SKIPPED_BY_OPENCODE or (kind == "text" and part.get("ignored") is True):
        return
    if kind in ("text", "reasoning"):
        yield {"type": kind, "text": part.get("text")}
        return
    state = part.get("state") if kind == "tool" else None
    if not isinstance(state, Mapping):
        raise ValueError(f"content is not text: part {excerpt(kind, _SHOWN)} in message {number}. Delete the message")
    call = {"toolCallId": part.get("callID"), "toolName": part.get("tool")}
    yield {"type": "tool-call", **call, "input": state.get("input")}
    if state.get("status") in ("completed", "error"):
        output = state.get("output") if state["status"] == "completed" else state.get("error")
        yield {"type": "tool-result", **call, "output": output}


def is_copilot_chat(data: Mapping[str, Any]) -> bool:
    """True for an export of Copilot Chat in Visual Studio Code."""
    return "responderUsername" in data and isinstance(data.get("requests"), list)


def refuse_copilot_chat(data: Mapping[str, Any]) -> Read:
    """Raise `ValueError`, because such a file lacks a part of what the model read."""
    raise ValueError(
        "an export of Copilot Chat is not read, because it lacks what the model read, such as attached files and the "
        "arguments of calls. Log the requests to the model instead, e.g. with a proxy"
    )


def is_zed(data: Mapping[str, Any]) -> bool:
    """True for a thread of Zed."""
    messages = data.get("messages")
    return isinstance(messages, list) and bool(messages) and all(
        message == "Resume" or (isinstance(message, Mapping) and len(message) == 1 and {*message} <= {"User", "Agent"})
        for message in messages
    )  # fmt: skip


def refuse_zed(data: Mapping[str, Any]) -> Read:
    """Raise `ValueError`, because Zed keeps a role as the key of a message."""
    raise ValueError(
        "threads of Zed are not read: each message is under a key User or Agent. Write the messages as a list with "
        "role and content"
    )
