"""Messages of a chat that is stored as a tree, e.g. in ChatGPT's export of an account's data.

    {"id": "x", "current_node": "d", "mapping": {
        "b": {"parent": "a", "children": ["c", "d"], "message": {"author": {"role": "user"}, "content": {
            "content_type": "text", "parts": ["Where is my parcel?"]}}}, …}}

If a reply was generated again, the tree has a second branch. The branch that ends at `current_node` is read, because
the user saw it last. Empty messages, and messages that the user does not see, are left out. Anything but text is an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.logged_chat import MAX_MESSAGES

TREE, END = "mapping", "current_node"
_SHOWN = 80  # characters of a value in a reason


def branch_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages in OpenAI's format from the root to `current_node`. Raises `ValueError` if the tree is broken."""
    nodes, place = data[TREE], data.get(END)
    if not isinstance(nodes, Mapping):
        raise ValueError(f"{TREE} is not an object: {type(nodes).__name__}")
    messages: list[dict[str, Any]] = []
    for _ in range(MAX_MESSAGES + 1):
        node = nodes.get(place) if isinstance(place, str) else None
        if not isinstance(node, Mapping):
            raise ValueError(f"broken tree: no node {excerpt(place, _SHOWN)} in {TREE}")
        if (message := _message(node.get("message"))) is not None:
            messages.append(message)
        place = node.get("parent")
        if place is None:
            return messages[::-1]
    raise ValueError(f"over-long chat: over {MAX_MESSAGES} messages")


def _message(message: Any) -> dict[str, Any] | None:
    """A message in OpenAI's format. None if it has no text, or if the user does not see it."""
    if message is None:
        return None
    if not isinstance(message, Mapping):
        raise ValueError(f"message is not an object: {type(message).__name__}")
    author, content = message.get("author"), message.get("content")
    metadata = message.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("is_visually_hidden_from_conversation") is True:
        return None
    kind = content.get("content_type") if isinstance(content, Mapping) else None
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if kind != "text" or not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"content is not text: {excerpt(kind, _SHOWN)}")
    role = author.get("role") if isinstance(author, Mapping) else None
    text = "".join(parts)
    return {"role": role, "content": text} if text.strip() else None
