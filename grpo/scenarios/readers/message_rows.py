"""Chats from tables with one row per message, as help desks export them.

    ticket,author,created,body                                        user_responses        expected.responses
    17,end-user,2026-11-20 09:00,Where is my parcel?          →       Where is my parcel?   It was due yesterday.
    17,agent,2026-11-20 09:02,It was due yesterday.

Rows of a conversation may be anywhere in the table. They are kept in a temporary file, so that memory does not grow
with the table. A row is quarantined if it names no conversation. A conversation is quarantined if it has an unknown
speaker.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.config.chats import MessageRows
from grpo.data_errors import excerpt, try_call
from grpo.errors import StorageError
from grpo.messages import Role
from grpo.scenarios.logged_chat import MAX_MESSAGES, ChatOrigin, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.readers.mapped_columns import map_cells, merge_fields
from grpo.scenarios.records import Converted, SourceRecord, convert_record
from grpo.scenarios.times import instant

_TABLE = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -32000; -- KiB
    CREATE TABLE rows (number INTEGER PRIMARY KEY, chat TEXT, line INTEGER, content TEXT);
    CREATE INDEX by_chat ON rows (chat, number);
    BEGIN;
"""
_TAGS: dict[str, Role] = {
    **dict.fromkeys(("user", "customer", "end-user", "end_user", "requester", "contact", "lead", "visitor"), "user"),
    **dict.fromkeys(("client", "human", "incoming"), "user"),
    **dict.fromkeys(
        ("agent", "assistant", "admin", "teammate", "operator", "bot", "agentbot", "outgoing"), "assistant"
    ),
    "system": "system",
}
"""Common names of speakers, in lower case."""
_SHOWN = 80  # characters of a value in a reason
_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
SOURCE = "message_rows"
"""`metadata.source` of these scenarios."""


def read_message_rows(
    records: Iterable[SourceRecord], path: Path, settings: MessageRows, columns: Mapping[str, str]
) -> Iterator[SourceRecord]:
    """Group rows, with cells by column as data, into one record per conversation, at the line of its first row.

    The cells of the first row give the fields in `columns`. If a row cannot be read, it is a record of its own.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as database:  # SQLite deletes a nameless database
        database.executescript(_TABLE)
        for record in records:
            broken = _keep(database, record, settings, columns)
            if broken is not None:
                yield broken
        for chat, line in database.execute("SELECT chat, MIN(line) FROM rows GROUP BY chat ORDER BY MIN(number)"):
            record = SourceRecord(source=str(path), line=line, data={"chat": chat}, raw=chat)
            yield convert_record(record, partial(_fields, database, settings, columns))


def _keep(
    database: sqlite3.Connection, record: SourceRecord, settings: MessageRows, columns: Mapping[str, str]
) -> SourceRecord | None:
    """Keep a row. If it belongs to no conversation, return the record with its problem."""
    cells = record.data
    if cells is None:
        return record
    content = try_call(lambda: _row(cells, settings, columns))
    if isinstance(content, Exception):
        return convert_record(record, partial(_raise, content))
    try:
        database.execute(
            "INSERT INTO rows (chat, line, content) VALUES (?, ?, ?)", (content[0], record.line, content[1])
        )
    except sqlite3.OperationalError as error:
        raise StorageError(f"rows cannot be kept on disk: {error}. Free space or set TMPDIR elsewhere") from error
    return None


def _raise(error: Exception, cells: dict[str, Any]) -> dict[str, Any]:
    raise error


def _row(cells: Mapping[str, Any], settings: MessageRows, columns: Mapping[str, str]) -> tuple[str, str]:
    """Conversation of a row, and its cells as JSON."""
    needed = (settings.group_by, settings.speaker, settings.text, *((settings.order,) if settings.order else ()))
    for name in (*needed, *settings.where, *columns.values()):
        if name not in cells:
            raise ValueError(f"no column {name}: the record has {excerpt(', '.join(cells), 300) or 'none'}")
    chat = cells[settings.group_by]
    if chat in (None, "") or not isinstance(chat, (str, int, float)):
        raise ValueError(f"no conversation: column {settings.group_by} is {excerpt(chat, _SHOWN)}")
    kept = {name: cells[name] for name in dict.fromkeys((*needed, *settings.where, *columns.values()))}
    content = json.dumps(kept, default=str, ensure_ascii=False)
    content.encode()
    return excerpt(_text(chat), 500), content


def _text(value: Any) -> str:
    """A cell as text: true is "true", 7 is "7"."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _fields(
    database: sqlite3.Connection, settings: MessageRows, columns: Mapping[str, str], data: dict[str, Any]
) -> Converted:
    chat = data["chat"]
    query = "SELECT content FROM rows WHERE chat = ? ORDER BY number LIMIT ?"
    rows = [from_json(content) for (content,) in database.execute(query, (chat, MAX_MESSAGES + 1))]
    if len(rows) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: over {MAX_MESSAGES} messages")
    ordered = _ordered(rows, settings)
    ignored: list[str] = []
    messages: list[LoggedMessage] = []
    for row in ordered:
        if any(_text(row[name]) not in accepted for name, accepted in settings.where.items()):
            ignored.append(f"row: {' or '.join(settings.where)} is not one of those in where")
            continue
        message = _message(row, settings)
        if message is None:
            ignored.append(f"row: the speaker {excerpt(_text(row[settings.speaker]), 40)} is ignored")
        else:
            messages.append(message)
    logged = LoggedChat(messages=tuple(messages), ignored=tuple(ignored))
    fields = {**chat_fields(logged, users=settings.users), **ChatOrigin(id=chat, source=SOURCE).fields()}
    return merge_fields(fields, map_cells(columns, ordered[0])), logged.all_ignored


def _ordered(rows: Sequence[dict[str, Any]], settings: MessageRows) -> list[dict[str, Any]]:
    """Rows by their order column. Rows with the same time keep the order of the table."""
    name = settings.order
    if name is None:
        return list(rows)
    keys = [try_call(partial(instant, row[name])) for row in rows]
    for row, key in zip(rows, keys, strict=True):
        if isinstance(key, Exception):
            raise ValueError(f"order cannot be read: column {name} is {excerpt(_text(row[name]), _SHOWN)}, {key}")
    return [row for _, row in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])]  # type: ignore[return-value, arg-type]


def _message(row: Mapping[str, Any], settings: MessageRows) -> LoggedMessage | None:
    """Message of a row. None if its speaker is ignored."""
    speaker, text = _text(row[settings.speaker]), row[settings.text]
    meaning = settings.tags.get(speaker) or _TAGS.get(speaker.strip().lower())
    if meaning == "ignore":
        return None
    if meaning not in _ROLES:
        raise ValueError(
            f"unknown speaker: {excerpt(speaker, _SHOWN)} in column {settings.speaker}. Say in the source's tags "
            "whether it is the user or the assistant, or ignore it"
        )
    return LoggedMessage(role=meaning, content="" if text is None else _text(text))
