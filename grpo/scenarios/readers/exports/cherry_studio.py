"""Backups of Cherry Studio (`data.json`): topics with messages, and the blocks that the messages are made of.

    {"indexedDB": {
        "topics": [{"id": "t", "messages": [
            {"id": "1", "role": "user", "blocks": ["a"]},
            {"id": "2", "role": "assistant", "askId": "1", "blocks": ["b", "c"]}]}],
        "message_blocks": [
            {"id": "a", "type": "main_text", "content": "Where is order 7?"},
            {"id": "b", "type": "tool", "toolId": "look_up", "arguments": {"order": "7"}, "content": "lost"},
            {"id": "c", "type": "main_text", "content": "It is lost."}]},
     "localStorage": {"persist:cherry-studio": "{\\"assistants\\": …}"}}

Several models may reply to one message (`askId`). As in the program, the reply that is marked as useful is read, or
else the first one. After a message of the type `clear` the model reads nothing of what was before it, so that another
chat begins. Versions before 1.3 have the text in the message. The system prompt is the prompt of the assistant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES
from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.scenarios.readers.messages.speaker_turns import separate_texts

_SETTINGS = "record: names, dates and settings of Cherry Studio"
_STORE = "persist:cherry-studio"
_BLOCKS, _ASSISTANT = "message_blocks", "assistant"
_SHOWN_ONLY = ("translation", "citation", "unknown", "error")
_UNFINISHED = ("paused", "error", "pending", "processing")
_SHOWN = 80  # characters of a value in a reason


def cherry_chats(document: Mapping[str, Any]) -> list[Any]:
    """Chats of a backup, each with its blocks and its assistant. Empty for every other document."""
    topics = value_at(document, "indexedDB.topics")
    if not isinstance(topics, list) or "localStorage" not in document:
        return []
    blocks = _by_id(value_at(document, f"indexedDB.{_BLOCKS}"))
    local = document["localStorage"]
    store = parsed(local.get(_STORE)) if isinstance(local, Mapping) else None
    assistants = _by_id(value_at(store, "assistants.assistants") if isinstance(store, Mapping) else None)
    return [chat for topic in topics if isinstance(topic, Mapping) for chat in _chats(topic, blocks, assistants)]


def _by_id(items: Any) -> dict[str, Any]:
    given = items if isinstance(items, list) else []
    return {str(item.get("id")): item for item in given if isinstance(item, Mapping)}


def _chats(topic: Mapping[str, Any], blocks: Mapping[str, Any], assistants: Mapping[str, Any]) -> Iterator[Any]:
    given = topic.get("messages")
    messages = [message for message in (given if isinstance(given, list) else ()) if isinstance(message, Mapping)]
    parts: list[list[Mapping[str, Any]]] = [[]]
    for message in messages:
        if message.get("type") == "clear":
            parts.append([])
        else:
            parts[-1].append(message)
    for number, part in enumerate(filter(None, parts), start=1):
        names = [str(name) for message in part for name in message.get("blocks") or ()]
        yield {
            "id": str(topic.get("id")) if number == 1 else f"{topic.get('id')}-{number}",
            "messages": part,
            _BLOCKS: {name: blocks[name] for name in names if name in blocks},
            _ASSISTANT: assistants.get(str(part[0].get("assistantId")), {}),
        }


def is_cherry_studio(data: Mapping[str, Any]) -> bool:
    """True for a chat of such a backup."""
    return isinstance(data.get(_BLOCKS), Mapping) and isinstance(data.get("messages"), list)


def read_cherry_studio(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The messages with parts, of which one reply to each message is read, and the prompt of the assistant."""
    blocks = data[_BLOCKS]
    replies: dict[str, Mapping[str, Any]] = {}
    for message in data["messages"]:
        asked = _asked(message)
        if asked is not None and (asked not in replies or _rank(message, blocks) > _rank(replies[asked], blocks)):
            replies[asked] = message
    shown = [
        (number, message)
        for number, message in enumerate(data["messages"])
        if (asked := _asked(message)) is None or replies[asked] is message
    ]
    messages = [_message(message, number, blocks) for number, message in shown]
    ignored = [_SETTINGS, *([OTHER_BRANCHES] if len(shown) < len(data["messages"]) else [])]
    prompt = data[_ASSISTANT].get("prompt") if isinstance(data.get(_ASSISTANT), Mapping) else None
    return {"id": data["id"], "messages": messages, **({"system": prompt} if prompt else {})}, ignored


def _asked(message: Mapping[str, Any]) -> str | None:
    """Id of the message that a reply answers."""
    return str(message["askId"]) if message.get("role") == "assistant" and message.get("askId") else None


def _rank(message: Mapping[str, Any], blocks: Mapping[str, Any]) -> int:
    """A reply that is marked as useful comes before others, and one with only an error comes after them."""
    kinds = {blocks.get(str(name), {}).get("type") for name in message.get("blocks") or ()}
    return 2 if message.get("useful") is True else 0 if kinds == {"error"} else 1


def _message(message: Mapping[str, Any], number: int, blocks: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("files") or message.get("images") or value_at(message, "metadata.mcpTools"):
        raise ValueError(f"files or tools of message {number} cannot be read: only its text is read. Delete it")
    names = [str(name) for name in message.get("blocks") or ()]
    if missing := next((name for name in names if name not in blocks), None):
        raise ValueError(f"block {excerpt(missing, _SHOWN)} of message {number} is not in the file. Back up again")
    parts = separate_texts(part for name in names for part in _parts(blocks[name], number))
    content = parts if names else message.get("content")
    is_cut = message.get("status") in _UNFINISHED
    return {"role": message.get("role"), "content": content, **({"weight": 0} if is_cut else {})}


def _parts(block: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    kind = block.get("type")
    if kind in _SHOWN_ONLY:
        return []
    if kind in ("main_text", "code"):
        return [{"type": "text", "text": block.get("content")}]
    if kind == "thinking":
        return [{"type": "reasoning", "text": block.get("content")}]
    if kind != "tool":
        raise ValueError(f"content is not text: block {excerpt(kind, _SHOWN)} in message {number}. Delete it")
    raw = value_at(block, "metadata.rawMcpToolResponse")
    raw = raw if isinstance(raw, Mapping) else {}
    name = value_at(raw, "tool.name") or block.get("toolName") or block.get("toolId")
    arguments = raw.get("arguments") or block.get("arguments") or {}
    output = block.get("content") if block.get("content") is not None else raw.get("response")
    inner = output.get("content") if isinstance(output, Mapping) and isinstance(output.get("content"), list) else output
    call = {"toolCallId": block.get("id"), "toolName": name}
    return [{"type": "tool-call", **call, "input": arguments}, {"type": "tool-result", **call, "output": inner}]
