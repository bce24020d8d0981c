"""Tickets in JSON as help desks export them: Zendesk, Intercom, Freshdesk and Chatwoot, by the fields of their APIs.

    zendesk     a ticket with `comments`. `requester_id` is the customer, and `public` is false for internal notes
    intercom    a conversation: `source`, its first message, and `conversation_parts`, in which comments are messages
    freshdesk   a ticket: `description`, its first message, and `conversations` (API) or `notes` (export of the account)
    chatwoot    a conversation: `messages`, or `payload` of the API, with `message_type` 0 (incoming) and 1 (outgoing)

A file is JSON lines, a list, or a page of the API with a list under `tickets`, `conversations`, `data` or `payload`.
Notes that the customer does not see, events, and deleted or empty messages are left out and counted. HTML is converted
to text. Messages are ordered by the time of their creation. Attachments are not read: they are counted, and a ticket is
quarantined if a message has nothing else, or if a person in copy writes, because a chat has two speakers. Not covered:
custom fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from grpo.config.chats import LoggedUsers
from grpo.config.scenarios import HelpDesk
from grpo.data_errors import excerpt
from grpo.scenarios.logged_chat import MAX_MESSAGES, ChatOrigin, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.readers.exports.record_file import read_objects
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.records import Converted, SourceRecord, convert_record
from grpo.scenarios.times import instant

PAGES: dict[HelpDesk, tuple[str, ...]] = {
    "zendesk": ("tickets",),
    "intercom": ("conversations", "data"),
    "freshdesk": ("tickets",),
    "chatwoot": ("data", "payload"),
}
"""Keys of the list of tickets in a page of each API."""
_WRAPPERS = ("helpdesk_ticket", "ticket", "conversation")
_BLOCKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "blockquote"}
_SILENT = {"style", "script", "head"}
_CUSTOMERS = {"user", "lead", "contact", "visitor"}
_AGENTS = {"admin", "bot", "team", "teammate"}
_CHATWOOT = {
    0: "user",
    "incoming": "user",
    1: "assistant",
    "outgoing": "assistant",
    3: "assistant",
    "template": "assistant",
}
_SHOWN = 80  # characters of a value in a reason


class _Entry(NamedTuple):
    """Message of a ticket, or the reason why it is left out."""

    time: Any
    customer: bool
    text: str
    left_out: str | None = None
    has_files: bool = False


def read_help_desk(kind: HelpDesk, path: Path, users: LoggedUsers) -> Iterator[SourceRecord]:
    """Read one ticket per record. If a ticket is broken, its record has a problem."""
    for record in _tickets(kind, read_objects(path)):
        yield convert_record(record, partial(_fields, kind, users))


def _tickets(kind: HelpDesk, records: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
    """Tickets of the records. A record may also be a page of the API with several tickets."""
    number = 0
    for record in records:
        data = record.data
        items = None if data is None else _page(kind, data)
        if items is None:
            yield record
            continue
        for item in items:
            number += 1
            if isinstance(item, dict):
                yield replace(record, line=number, data=item, raw="")
            else:
                problem = f"not an object: {type(item).__name__}"
                yield replace(record, line=number, data=None, raw=excerpt(item), problem=problem)


def _page(kind: HelpDesk, data: Mapping[str, Any]) -> list[Any] | None:
    """Tickets of a page of the API. None if the record is a ticket itself."""
    if "id" in data or (kind == "chatwoot" and _is_messages(data.get("payload"))):
        return None
    for name in (names := PAGES[kind]):
        value = data.get(name)
        if isinstance(value, Mapping):
            value = next((value[inner] for inner in names if isinstance(value.get(inner), list)), None)
        if isinstance(value, list):
            return value
    return None


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, Mapping) and "message_type" in item for item in value)


def _fields(kind: HelpDesk, users: LoggedUsers, data: dict[str, Any]) -> Converted:
    for name in _WRAPPERS:
        if isinstance(data.get(name), dict) and "id" not in data:
            data = data[name]
    entries = _ENTRIES[kind](data)
    if len(entries) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: {len(entries)} messages, at most {MAX_MESSAGES}")
    ignored = [entry.left_out for entry in entries if entry.left_out is not None]
    kept = [entry for entry in entries if entry.left_out is None]
    if all(entry.time is not None for entry in kept):
        kept.sort(key=lambda entry: instant(entry.time))
    if any(entry.has_files and not entry.text.strip() for entry in kept):
        raise ValueError("content other than text is not read: a message has only attachments")
    ignored += ["attachments: content other than text is not read" for entry in kept if entry.has_files]
    ignored += ["message: empty" for entry in kept if not entry.text.strip()]
    messages = [
        LoggedMessage(role="user" if entry.customer else "assistant", content=entry.text)
        for entry in kept
        if entry.text.strip()
    ]
    chat = LoggedChat(messages=tuple(messages), ignored=tuple(ignored))
    origin = ChatOrigin(id=_identity(kind, data), source=kind)
    return {**chat_fields(chat, users=users), **origin.fields()}, chat.all_ignored


def _identity(kind: HelpDesk, data: Mapping[str, Any]) -> str:
    names = ("id", "display_id", "conversation_id")
    inside = data.get("payload") or data.get("messages")
    first = inside[0] if isinstance(inside, list) and inside and isinstance(inside[0], Mapping) else {}
    places = ((data, names), (first, ("conversation_id",)))
    given = next((place[name] for place, keys in places for name in keys if place.get(name) is not None), None)
    if not isinstance(given, (str, int)) or isinstance(given, bool):
        raise ValueError(f"no id: the record has {', '.join(data) or 'no field'}")
    return f"{kind}-{given}"


def _zendesk(data: Mapping[str, Any]) -> list[_Entry]:
    comments, requester = _list(data, "comments"), data.get("requester_id")
    if requester is None:
        raise ValueError(f"no requester_id: the record has {', '.join(data)}")
    copied, own = data.get("email_cc_ids"), (requester, data.get("assignee_id"))
    in_copy = [author for author in copied if author not in own] if isinstance(copied, list) else []
    if third := [comment for comment in comments if comment.get("author_id") in in_copy and not _is_note(comment)]:
        raise ValueError(f"a third speaker: author {excerpt(third[0].get('author_id'), _SHOWN)} is in copy")
    return [
        _Entry(
            time=comment.get("created_at"),
            customer=comment.get("author_id") == requester,
            text=_text(comment, ("plain_body", "body"), "html_body"),
            left_out="comment: an internal note" if _is_note(comment) else None,
            has_files=_has_files(comment, "html_body"),
        )
        for comment in comments
    ]


def _is_note(comment: Mapping[str, Any]) -> bool:
    return comment.get("public") is False


def _intercom(data: Mapping[str, Any]) -> list[_Entry]:
    parts = data.get("conversation_parts")
    if isinstance(parts, Mapping):
        data = {**data, "conversation_parts": parts.get("conversation_parts", [])}
    source = data.get("source") or data.get("conversation_message")
    if not isinstance(source, Mapping):
        raise ValueError(f"no source: the record has {', '.join(data)}")
    first = {"part_type": "comment", "created_at": data.get("created_at"), **source}
    return [_intercom_part(part) for part in (first, *_list(data, "conversation_parts"))]


def _intercom_part(part: Mapping[str, Any]) -> _Entry:
    author = part.get("author")
    kind = author.get("type") if isinstance(author, Mapping) else None
    what = part.get("part_type")
    text = _text(part, (), "body")
    left_out = None
    if what == "note":
        left_out = "part: an internal note"
    elif (not text.strip() and not _has_files(part, "body")) or part.get("redacted") is True:
        left_out = f"part: an event without a message ({excerpt(what, 40)})"
    elif kind not in _CUSTOMERS | _AGENTS:
        raise ValueError(f"unknown author: type {excerpt(kind, _SHOWN)}. Known are {', '.join(_CUSTOMERS | _AGENTS)}")
    return _Entry(
        time=part.get("created_at"),
        customer=kind in _CUSTOMERS,
        text=text,
        left_out=left_out,
        has_files=_has_files(part, "body"),
    )


def _freshdesk(data: Mapping[str, Any]) -> list[_Entry]:
    name = "conversations" if "conversations" in data else "notes"
    question = _text(data, ("description_text",), "description")
    first = _Entry(time=data.get("created_at"), customer=True, text=question, has_files=_has_files(data, "description"))
    return [
        first,
        *(
            _Entry(
                time=note.get("created_at"),
                customer=note.get("incoming") is True,
                text=_text(note, ("body_text",), "body"),
                left_out=_note(note),
                has_files=_has_files(note, "body"),
            )
            for note in _list(data, name)
        ),
    ]


def _note(note: Mapping[str, Any]) -> str | None:
    if note.get("private") is True:
        return "conversation: an internal note"
    return "conversation: deleted" if note.get("deleted") is True else None


def _chatwoot(data: Mapping[str, Any]) -> list[_Entry]:
    entries = []
    for message in _list(data, "messages" if "messages" in data else "payload"):
        kind = message.get("message_type")
        meaning = _CHATWOOT.get(kind) if isinstance(kind, (int, str)) else None
        left_out = None
        if message.get("private") is True:
            left_out = "message: an internal note"
        elif kind in (2, "activity"):
            left_out = "message: an event of the conversation"
        elif value_at(message, "content_attributes.deleted"):
            left_out = "message: deleted"
        elif meaning is None:
            raise ValueError(f"unknown message_type: {excerpt(kind, _SHOWN)}. Known are 0 to 3")
        text = _text(message, ("content",), "")
        entries.append(
            _Entry(
                time=message.get("created_at"),
                customer=meaning == "user",
                text=text,
                left_out=left_out,
                has_files=_has_files(message, ""),
            )
        )
    return entries


_ENTRIES: dict[HelpDesk, Callable[[Mapping[str, Any]], list[_Entry]]] = {
    "zendesk": _zendesk,
    "intercom": _intercom,
    "freshdesk": _freshdesk,
    "chatwoot": _chatwoot,
}


def _list(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = data.get(name)
    if not isinstance(value, list):
        raise ValueError(f"no {name}: the record has {', '.join(data) or 'no field'}")
    if broken := next((item for item in value if not isinstance(item, Mapping)), None):
        raise ValueError(f"{name} has an entry that is not an object: {type(broken).__name__}")
    return value


def _has_files(data: Mapping[str, Any], html: str) -> bool:
    """True if a message has attachments, or a picture in its HTML."""
    return bool(data.get("attachments")) or "<img" in str(data.get(html)).lower()


def _text(data: Mapping[str, Any], plain: tuple[str, ...], html: str) -> str:
    """Text of the first plain field, or else of a field in HTML."""
    for name in (*plain, html):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ValueError(f"{name} is not a text: {type(value).__name__}")
        return value if name != html else _of_html(value)
    return ""


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT and self._silent > 0
        if tag in _BLOCKS - {"br"}:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def _of_html(value: str) -> str:
    """Text of an HTML fragment, one line per block."""
    parser = _Text()
    parser.feed(value)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)
