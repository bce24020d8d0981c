"""Messages that name the message before them, as programs store chats in which a reply can be generated again.

    {"id": "a", "parentId": null, "role": "user", …}, {"id": "b", "parentId": "a", …}, {"id": "c", "parentId": "a", …}

`b` and `c` are two replies to `a`. In a list of all messages they would become one reply that says both, so that only
one branch is read: the branch that the program shows, or else the branch of the newest message, the last of the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.scenarios.readers.messages.speakers import TOOLS, speaker_name

OTHER_BRANCHES = "record.messages: other replies, which are not in the shown branch"
_LINKS = (
    ("id", "parentId"), ("id", "parent_id"), ("id", "parent"), ("id", "ancestors"), ("messageId", "parentMessageId"),
    ("uuid", "parent_message_uuid"), ("uuid", "parentUuid"),
)  # fmt: skip
"""Keys of a message's id and of its predecessor's: of Open WebUI, llama.cpp, HuggingChat, LibreChat and Claude."""
_LINKS_OF_ROWS = (("uuid", "parentUuid"), ("id", "parentId"), ("messageId", "parentMessageId"))
"""Keys of rows that chat programs write: Claude Code, Le Chat and LibreChat."""
_FIRST_OF_ALL = ("parentUuid", "parent_message_uuid")
"""Keys that are null only for the first message of a branch: of Claude Code and Claude."""
_PARENTS = tuple(dict.fromkeys(parent_key for _, parent_key in _LINKS))
_SPEAKERS = ("role", "from", "sender", "type")
_CHILDREN = ("children", "childrenIds")
_SHOWN = 80  # characters of a value in a reason


def shown_branch(messages: Any, end: Any = None) -> tuple[Any, bool]:
    """Messages of one branch, and whether there are others. `end` is the id of its last message.

    If only replies name a message, so that each question would begin a branch, the newest version of each reply is read
    and nothing else is left out. A list whose messages are not linked stays as it is. Raises `ValueError` if the links
    are broken.
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
    roots = [message for message in messages if _parent(message, parent_key) not in by_id]
    are_first = parent_key in _FIRST_OF_ALL or not all(_parent(root, parent_key) is None for root in roots)
    if end is None and len(roots) > 1 and not are_first:
        shown = _shown(messages, keys, list(map(_speaker, messages)))
        kept = [message for message, is_shown in zip(messages, shown, strict=True) if is_shown]
        return [_without_links(message, by_id) for message in kept], not all(shown)
    message = by_id.get(end, messages[-1]) if isinstance(end, (str, int)) else messages[-1]
    branch: list[Mapping[str, Any]] = []
    while message is not None:
        if len(branch) > len(messages):
            raise ValueError(f"broken tree: message {excerpt(message[id_key], _SHOWN)} comes before itself")
        branch.append(message)
        message = by_id.get(_parent(message, parent_key))
    return [_without_links(message, by_id) for message in reversed(branch)], True


def links(row: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of a row and of the row before it, by their keys. Empty if the row has no such keys."""
    return {key: row[key] for keys in _LINKS_OF_ROWS if {*keys} <= {*row} for key in keys}


def shown_versions(rows: Sequence[Mapping[str, Any]], speakers: Sequence[str | None]) -> list[bool]:
    """For each row in the order of time: is it shown? The others are versions that were replaced, and what follows.

    Rows of one speaker after the same row are versions of one message, and the version that leads to the newest row is
    shown. If rows of several speakers come after one row, it began a thread, and all of them are shown. A row without
    a speaker, such as the result of a call, is not a version.
    """
    linked = [row for row in rows if links(row)]
    keys = next((keys for keys in _LINKS_OF_ROWS if _are_linked(linked, *keys)), None)
    return [True] * len(rows) if keys is None else _shown(rows, keys, speakers)


def _shown(rows: Sequence[Mapping[str, Any]], keys: tuple[str, str], speakers: Sequence[str | None]) -> list[bool]:
    id_key, parent_key = keys
    places = {row[id_key]: place for place, row in enumerate(rows) if id_key in row}
    parents = [places.get(_parent(row, parent_key)) for row in rows]
    newest: dict[int, int] = {}
    for place in reversed(range(len(rows))):
        above: int | None = place
        while above is not None and above not in newest:
            newest[above] = place
            above = parents[above]
    after: dict[Any, list[int]] = {}
    for place, row in enumerate(rows):
        parent = _parent(row, parent_key)
        if speakers[place] is not None and (parent is not None or parent_key in _FIRST_OF_ALL):
            after.setdefault(parent, []).append(place)
    replaced = {
        place
        for siblings in after.values()
        if len({speakers[place] for place in siblings}) == 1
        for place in siblings
        if newest[place] < max(newest[sibling] for sibling in siblings)
    }
    return [not _leads_to(place, replaced, parents) for place in range(len(rows))]


def _speaker(message: Mapping[str, Any]) -> str | None:
    """Speaker of a message. None if it is the result of a call, or if no key names a speaker."""
    name = next((message[key] for key in _SPEAKERS if isinstance(message.get(key), str)), None)
    return None if name is None or speaker_name(name) in TOOLS else speaker_name(name)


def _leads_to(place: int | None, replaced: set[int], parents: Sequence[int | None]) -> bool:
    """True if this row, or one before it, was replaced."""
    passed: set[int] = set()
    while place is not None and place not in passed:
        if place in replaced:
            return True
        passed.add(place)
        place = parents[place]
    return False


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
    """True if each message has an id of its own, and at least one message names another as its predecessor."""
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
