"""Messages that name the message before them, as programs store chats in which a reply can be generated again.

    {"id": "a", "parentId": null, "role": "user", …}, {"id": "b", "parentId": "a", …}, {"id": "c", "parentId": "a", …}

`b` and `c` are two replies to `a`. In a list of all messages they would become one reply that says both, so that only
one branch is read: the branch that the program shows, or else the branch of the newest message, the last of the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt

OTHER_BRANCHES = "record.messages: other replies, which are not in the shown branch"
_LINKS = (
    ("id", "parentId"), ("id", "parent_id"), ("id", "parent"), ("id", "ancestors"), ("messageId", "parentMessageId"),
    ("uuid", "parent_message_uuid"), ("uuid", "parentUuid"),
)  # fmt: skip
"""Keys of a message's id and of its predecessor's: of Open WebUI, llama.cpp, HuggingChat, LibreChat and Claude."""
_PARENTS = tuple(dict.fromkeys(parent_key for _, parent_key in _LINKS))
_CHILDREN = ("children", "childrenIds")
_SHOWN = 80  # characters of a value in a reason


def shown_branch(messages: Any, end: Any = None) -> tuple[Any, bool]:
    """Messages of one branch, and whether there are others. `end` is the id of its last message.

    A list whose messages are not linked stays as it is. Raises `ValueError` if the links are broken.
    """
    if not isinstance(messages, list) or not messages or not all(isinstance(item, Mapping) for item in messages):
        return messages, False
    if not any(name in message for message in messages for name in _PARENTS):
        return messages, False
    messages = list(_flat(messages))
    keys = next((keys for keys in _LINKS if _are_linked(messages, *keys)), None)
    if keys is None:
        return messages, False
    id_key, parent_key = keys
    by_id = {message[id_key]: message for message in messages}
    parents = [_parent(message, parent_key) for message in messages]
    if end is None:  # in a thread of a forum, many messages answer none
        parents = [parent for parent in parents if parent is not None]
    if len({*parents}) == len(parents):
        return [_without_links(message, by_id) for message in messages], False
    message = by_id.get(end, messages[-1]) if isinstance(end, (str, int)) else messages[-1]
    branch: list[Mapping[str, Any]] = []
    while message is not None:
        if len(branch) > len(messages):
            raise ValueError(f"broken tree: message {excerpt(message[id_key], _SHOWN)} comes before itself")
        branch.append(message)
        message = by_id.get(_parent(message, parent_key))
    return [_without_links(message, by_id) for message in reversed(branch)], True


def _flat(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Messages in a list, of which each may hold the answers to it and the id of the message that it answers."""
    pending = list(reversed(messages))
    while pending:
        message = pending.pop()
        below = message.get("children")
        if not isinstance(below, list) or not all(isinstance(item, Mapping) for item in below) or not _has_id(message):
            yield message
            continue
        yield {key: value for key, value in message.items() if key != "children"}
        pending += reversed(below)


def _has_id(message: Mapping[str, Any]) -> bool:
    return any(isinstance(message.get(id_key), str) and parent_key in message for id_key, parent_key in _LINKS)


def _are_linked(messages: Sequence[Mapping[str, Any]], id_key: str, parent_key: str) -> bool:
    """Has each message an id of its own, and does one of them name another as its predecessor?"""
    ids = [message.get(id_key) for message in messages]
    if not all(isinstance(name, (str, int)) for name in ids) or len({*ids}) < len(ids):
        return False
    return any(_parent(message, parent_key) in ids for message in messages)


def _parent(message: Mapping[str, Any], key: str) -> str | int | None:
    value = message.get(key)
    if isinstance(value, list):  # all messages before this one
        value = value[-1] if value else None
    return value if isinstance(value, (str, int)) else None


def _without_links(message: Mapping[str, Any], by_id: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in message.items()
        if key not in _CHILDREN or not isinstance(value, list) or not all(_is_id(item, by_id) for item in value)
    }


def _is_id(value: Any, by_id: Mapping[Any, Any]) -> bool:
    return isinstance(value, (str, int)) and value in by_id
