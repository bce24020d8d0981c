"""Chats of programs for role play: Agnai and RisuAI. (SillyTavern's are in `silly_tavern`.)

    Agnai    {"treeLeafId": "2", "scenario": "A shop.", "messages": [
                 {"_id": "1", "userId": "u", "handle": "Ann", "msg": "Where is order 7?"},
                 {"_id": "2", "parent": "1", "characterId": "imported", "handle": "Desk", "msg": "It is lost."}]}
    RisuAI   {"type": "risuChat", "data": {"note": "Be kind.", "message": [
                 {"role": "user", "data": "Where is order 7?"}, {"role": "char", "data": "It is lost."}]}}

Agnai exports the shown branch only. Messages that the model does not read (`ooc`, `disabled`, `isComment`) are left
out. The description of the character is not in these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo.data_errors import excerpt

_HIDDEN = "message: a message that the model did not read"
_RISU, _RISU_CHATS = "risuChat", "risuAllChats"
_RISU_ROLES = {"user": "user", "char": "assistant", "assistant": "assistant"}
_SHOWN = 80  # characters of a value in a reason
Read = tuple[dict[str, Any], list[str]]


def is_agnai(data: Mapping[str, Any]) -> bool:
    """True for a chat of Agnai."""
    messages = data.get("messages")
    return isinstance(messages, list) and bool(messages) and all(map(_is_of_agnai, messages))


def _is_of_agnai(message: Any) -> bool:
    return isinstance(message, Mapping) and "msg" in message and bool({"handle", "userId", "characterId"} & {*message})


def read_agnai(data: Mapping[str, Any]) -> Read:
    """Messages of the users and characters, and the scenario as the system prompt."""
    ignored = ["record: names, dates and settings of Agnai"]
    messages = []
    for number, message in enumerate(data["messages"]):
        if message.get("ooc") is True:
            ignored.append(_HIDDEN)
            continue
        if message.get("extras"):
            raise ValueError(f"extras of message {number} cannot be read: only its text is read. Delete the message")
        if bool(message.get("characterId")) == bool(message.get("userId")):
            raise ValueError(f"message {number} has no userId and no characterId, or both. Correct it, or delete it")
        role = "assistant" if message.get("characterId") else "user"
        name = {"name": message["handle"]} if message.get("handle") else {}
        messages.append({"role": role, "content": message["msg"], **name})
    texts = [data.get(name) for name in ("scenario", "sampleChat")]
    system = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
    return {"messages": messages, **({"system": system} if system else {})}, ignored


def risu_chats(document: Mapping[str, Any]) -> list[Any]:
    """Chats of a file of RisuAI with all chats of a character, as files with one chat."""
    chats = document.get("data") if document.get("type") == _RISU_CHATS else None
    return [{"type": _RISU, "data": chat} for chat in chats] if isinstance(chats, list) else []


def is_risu(data: Mapping[str, Any]) -> bool:
    """True for a chat of RisuAI."""
    return data.get("type") == _RISU and isinstance(data.get("data"), Mapping)


def read_risu(data: Mapping[str, Any]) -> Read:
    """Messages that the model reads, and the note of the chat as the system prompt."""
    ignored = ["record: names, dates and settings of RisuAI"]
    chat = data["data"]
    given = chat.get("message")
    if not isinstance(given, list) or not all(isinstance(message, Mapping) for message in given):
        raise ValueError("message is not a list of objects. Export the chat again")
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(given):
        if message.get("disabled") or message.get("isComment"):
            ignored.append(_HIDDEN)
            messages = [] if message.get("disabled") == "allBefore" else messages
            continue
        if (role := _RISU_ROLES.get(str(message.get("role")))) is None:
            raise ValueError(f"unknown role: {excerpt(message.get('role'), _SHOWN)} in message {number}. Correct it")
        name = {"name": message["saying"]} if message.get("saying") else {}
        messages.append({"role": role, "content": message.get("data"), **name})
    ignored += ["record.localLore: texts that the model reads if a message has their words"] * bool(
        chat.get("localLore")
    )
    note = {"system": chat["note"]} if chat.get("note") else {}
    return {"messages": messages, **note}, ignored
