"""Messages of a chat that is stored as a tree: in ChatGPT's and DeepSeek's exports, and in OpenAssistant's trees.

    {"id": "x", "current_node": "d", "mapping": {
        "b": {"parent": "a", "children": ["c", "d"], "message": {"author": {"role": "user"}, "content": {
            "content_type": "text", "parts": ["Where is my parcel?"]}}}, …}}

    {"message_tree_id": "m1", "prompt": {"role": "prompter", "text": "Where is my parcel?", "replies": [
        {"role": "assistant", "text": "It is lost.", "rank": 0, "replies": [ … ]}, {…, "rank": 1, …}]}}

DeepSeek's export has fragments, and does not say which branch was shown, so that the branch of its newest message is
read:

    {"mapping": {"2": {"parent": "1", "message": {"fragments": [{"type": "RESPONSE", "content": "It is lost."}]}}, …}}

OpenAssistant's trees have several replies to one message. The best one by its rank is read, or the first one if none
has a rank.

If a reply was generated again, the tree has a second branch. The branch that ends at `current_node` is read, because
the user saw it last. The user's own instructions are the system prompt. Empty messages, and other messages that the
user does not see, are left out. Anything but text is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from grpo.data_errors import excerpt, try_call
from grpo.scenarios.logged_chat import MAX_MESSAGES
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.times import instant

TREE, END = "mapping", "current_node"
ROOT, REPLIES = "prompt", "replies"
OTHER_BRANCHES = "record.prompt: other replies of the tree, of which the best by its rank is read"
_THOUGHTS = ("thoughts", "reasoning_recap")
"""Content that only says what the model thought before a reply, and for how long."""
_TIME = "message.inserted_at"
_OWN_INSTRUCTIONS = "user_editable_context"
"""Content with what the user wrote about itself and the replies, which ChatGPT reads before a chat."""
_FRAGMENTS = ("REQUEST", "THINK", "RESPONSE")
_SHOWN = 80  # characters of a value in a reason


def is_chat_tree(data: Mapping[str, Any]) -> bool:
    """True for a tree of ChatGPT or DeepSeek. A table may have a column of the same name."""
    nodes = data.get(TREE)
    return TREE in data and (
        END in data or (isinstance(nodes, Mapping) and bool(nodes) and all(map(_is_node, nodes.values())))
    )


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and "message" in value and "parent" in value


def branch_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages in OpenAI's format from the root to `current_node`. Raises `ValueError` if the tree is broken."""
    nodes = data[TREE]
    if not isinstance(nodes, Mapping):
        raise ValueError(f"{TREE} is not an object: {type(nodes).__name__}")
    place = data.get(END, _newest(nodes) if any(map(_has_fragments, nodes.values())) else None)
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


def is_reply_tree(data: Mapping[str, Any]) -> bool:
    """True for a tree of OpenAssistant."""
    root = data.get(ROOT)
    return isinstance(root, Mapping) and "role" in root and isinstance(root.get(REPLIES), list)


def best_branch_of(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Messages in OpenAI's format along the best replies, and whether the tree has other replies."""
    messages: list[dict[str, Any]] = []
    node, has_others = data[ROOT], False
    while node is not None and len(messages) <= MAX_MESSAGES:
        if not isinstance(node, Mapping) or not isinstance(node.get("text"), str):
            raise ValueError(f"broken tree: a message without a text, after {len(messages)} messages")
        messages.append({"role": node.get("role"), "content": node["text"]})
        replies = node.get(REPLIES) or []
        if not isinstance(replies, list):
            raise ValueError(f"broken tree: {REPLIES} is not a list: {type(replies).__name__}")
        has_others = has_others or len(replies) > 1
        node = min(replies, key=_rank, default=None)
    return messages, has_others


def _rank(reply: Any) -> float:
    rank = reply.get("rank") if isinstance(reply, Mapping) else None
    return rank if isinstance(rank, (int, float)) else float("inf")


def _newest(nodes: Mapping[str, Any]) -> str:
    """Key of the newest message that no other follows, by the time, because the keys may be in any order.

    A question and its reply may have the same time. Without times, the last message of the file is the newest.
    """
    parents = {excerpt(node.get("parent")) for node in nodes.values() if _has_fragments(node)}
    ends = [name for name, node in nodes.items() if _has_fragments(node) and name not in parents]
    times = [try_call(partial(instant, value_at(nodes[name], _TIME))) for name in ends]
    if not ends or not all(isinstance(time, float) for time in times):
        return [*nodes][-1]
    return max(zip(times, range(len(ends)), ends, strict=True))[-1]


def _has_fragments(node: Any) -> bool:
    message = node.get("message") if isinstance(node, Mapping) else None
    return isinstance(message, Mapping) and isinstance(message.get("fragments"), list)


def _of_fragments(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """A message of DeepSeek: a request, or a response with the thoughts before it."""
    texts: dict[str, list[str]] = {kind: [] for kind in _FRAGMENTS}
    for part in message["fragments"]:
        kind, text = (part.get("type"), part.get("content")) if isinstance(part, Mapping) else (None, None)
        if not isinstance(kind, str) or kind not in texts or not isinstance(text, str):
            raise ValueError(f"a fragment {excerpt(kind, _SHOWN)} cannot be read. Only texts and thoughts are read")
        texts[kind].append(text)
    asked, thought, replied = ("\n".join(texts[kind]) for kind in _FRAGMENTS)
    files = {"files": message["files"]} if message.get("files") else {}
    if asked:
        return {"role": "user", "content": asked, **files}
    return {"role": "assistant", "content": replied, **({"reasoning": thought} if thought else {}), **files}


def _message(message: Any) -> dict[str, Any] | None:
    """A message in OpenAI's format. None if it has no text, or if the user does not see it."""
    if message is None:
        return None
    if not isinstance(message, Mapping):
        raise ValueError(f"message is not an object: {type(message).__name__}")
    if isinstance(message.get("fragments"), list):
        return _of_fragments(message)
    author, content = message.get("author"), message.get("content")
    metadata = message.get("metadata")
    if isinstance(content, Mapping) and content.get("content_type") == _OWN_INSTRUCTIONS:
        texts = [content.get(name) for name in ("user_profile", "user_instructions")]
        system = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
        return {"role": "system", "content": system} if system else None
    if isinstance(metadata, Mapping) and metadata.get("is_visually_hidden_from_conversation") is True:
        return None
    kind = content.get("content_type") if isinstance(content, Mapping) else None
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if kind in _THOUGHTS:
        return None
    if kind != "text" or not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"content is not text: {excerpt(kind, _SHOWN)}")
    role = author.get("role") if isinstance(author, Mapping) else None
    if role == "assistant" and message.get("recipient") not in (None, "all"):
        raise ValueError(f"a call of {excerpt(message['recipient'], _SHOWN)}, which ChatGPT ran itself, cannot be read")
    text = "".join(parts)
    return {"role": role, "content": text} if text.strip() else None
