"""Chats from tables with one row per message, as help desks export them.

    ticket,author,created,body                                        user_responses        expected.responses
    17,end-user,2026-11-20 09:00,Where is my parcel?          →       Where is my parcel?   It was due yesterday.
    17,agent,2026-11-20 09:02,It was due yesterday.

    chat,query,answer
    17,Where is my parcel?,It was due yesterday.         →       the same

Rows of a conversation may be anywhere in the table. They are kept in a temporary file, so that memory does not grow
with the table. A row is quarantined if it names no conversation, unless the settings leave it out. A conversation is
quarantined if it has an unknown speaker or a row that cannot be read. If the cells of a row cannot be told apart, e.g.
because it has one too many, it may belong to the conversations of the rows before and after it, so that both are
quarantined. Rows that are the same message again, by its id, are read once. Of the versions of a message that was
written again, the shown one is read, see `message_links`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.config.chats import MessageRows
from grpo.data_errors import excerpt, try_call
from grpo.errors import StorageError
from grpo.messages import Role
from grpo.scenarios.logged_chat import MAX_MESSAGES, ChatOrigin, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.message_order import MESSAGE_IDS, folded
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES, links, shown_versions
from grpo.scenarios.readers.files.places import is_there, parsed, value_at
from grpo.scenarios.readers.mapped_columns import map_cells, merge_fields
from grpo.scenarios.readers.messages.api_dialects import split_parts
from grpo.scenarios.readers.messages.openai_fields import calls_at
from grpo.scenarios.readers.messages.openai_format import parse_messages
from grpo.scenarios.readers.messages.speakers import SPEAKERS, speaker_name
from grpo.scenarios.records import Converted, SourceRecord, convert_record
from grpo.scenarios.times import instant, time_of_day

_TABLE = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -32000; -- KiB
    CREATE TABLE rows (number INTEGER PRIMARY KEY, chat TEXT, line INTEGER, content TEXT);
    CREATE INDEX by_chat ON rows (chat, number);
    BEGIN;
"""
_SHOWN = 80  # characters of a value in a reason
_ROLES: tuple[Role, ...] = ("system", "user", "assistant")
_PROBLEM = "\0problem"
_ID = "\0id"
"""Keys of a stored row next to its columns. No column of a table begins with a NUL character."""
_REPEATED = "row: the same message again"
_MEDIA = {"attachment", "attachments", "photo", "photos", "images", "videos"}
"""Columns of what a message has besides its text."""
_PRINTED_PARTS = {"text", "tool_use", "tool_result"}
"""Types of the parts of a message that are read if Python has printed their list."""
_WHOLE_TABLE = "chat"
"""Name of the only conversation of a table."""
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
        table = _Table()
        for record in records:
            broken = _keep(database, table, record, settings, columns)
            if broken is not None:
                yield broken
        for chat, line in database.execute("SELECT chat, MIN(line) FROM rows GROUP BY chat ORDER BY MIN(number)"):
            record = SourceRecord(source=str(path), line=line, data={"chat": chat}, raw=chat)
            yield convert_record(record, partial(_fields, database, table, settings, columns))


@dataclass(slots=True)
class _Table:
    """The last row that was read, and in which direction the times of the table go."""

    chat: str | None = None
    """Conversation of the last row."""
    times: tuple[float, ...] | None = None
    """Values of the order columns in the last row. None if they cannot be read."""
    broken_line: int | None = None
    """Line of the last row, if its cells cannot be told apart."""
    rises: int = 0
    falls: int = 0
    """Number of rows that are later or earlier than the row before them, of the same conversation."""

    @property
    def newest_first(self) -> bool:
        """True if no row of a conversation is later than the row before it. Then rows of the same time are, too."""
        return self.falls > 0 and self.rises == 0

    def add(self, chat: str, times: tuple[float, ...] | None) -> None:
        """Compare a row with the row before it."""
        if times is not None and self.times is not None and chat == self.chat:
            self.rises += times > self.times
            self.falls += times < self.times
        self.chat, self.times, self.broken_line = chat, times, None


def _keep(
    database: sqlite3.Connection,
    table: _Table,
    record: SourceRecord,
    settings: MessageRows,
    columns: Mapping[str, str],
) -> SourceRecord | None:
    """Keep a row. If it belongs to no conversation, return the record with its problem.

    A row that cannot be read is kept with its problem, because its conversation would not be whole without it.
    """
    cells = record.data
    if cells is None:
        if table.chat is not None:
            _insert_problem(database, table.chat, record.line)
        table.broken_line = record.line
        return record
    if settings.group_by is not None and not is_there(cells, settings.group_by) and _is_left_out(cells, settings):
        return None
    chat = try_call(lambda: _conversation(cells, settings))
    if isinstance(chat, Exception):
        return convert_record(record, partial(_raise, chat))
    content = try_call(lambda: _row(cells, settings, columns))
    if table.broken_line is not None:
        _insert_problem(database, chat, table.broken_line)
    times = try_call(lambda: _times(lambda name: value_at(cells, name), settings)) if settings.orders else None
    table.add(chat, None if isinstance(times, Exception) else times)
    kept = json.dumps({_PROBLEM: str(content)}) if isinstance(content, Exception) else content
    _insert(database, chat, record.line, kept)
    return None


def _insert_problem(database: sqlite3.Connection, chat: str, line: int) -> None:
    """Quarantine a conversation, because a row next to it cannot be read and may be one of its messages."""
    _insert(database, chat, line, json.dumps({_PROBLEM: f"a neighbouring row cannot be read: line {line}"}))


def _insert(database: sqlite3.Connection, chat: str, line: int, content: str) -> None:
    try:
        database.execute("INSERT INTO rows (chat, line, content) VALUES (?, ?, ?)", (chat, line, content))
    except sqlite3.OperationalError as error:
        raise StorageError(f"rows cannot be kept on disk: {error}. Free space or set TMPDIR elsewhere") from error


def _raise(error: Exception, cells: dict[str, Any]) -> dict[str, Any]:
    raise error


def _conversation(cells: Mapping[str, Any], settings: MessageRows) -> str:
    """Conversation of a row."""
    name = settings.group_by
    if name is None:
        return _WHOLE_TABLE
    if not is_there(cells, name):
        raise ValueError(_missing(name, cells))
    chat = value_at(cells, name)
    if chat in (None, "") or not isinstance(chat, (str, int, float)):
        raise ValueError(f"no conversation: column {name} is {excerpt(chat, _SHOWN)}")
    return excerpt(_text(chat), 500)


def _row(cells: Mapping[str, Any], settings: MessageRows, columns: Mapping[str, str]) -> str:
    """Cells of a row by the places that the settings name, as JSON. A tag for null stands for a missing speaker."""
    is_read = not _is_left_out(cells, settings)
    needed = [name for name in settings.places if name != settings.speaker or "null" not in settings.tags]
    for name in (*(needed if is_read else ()), *settings.where, *columns.values()):
        if not is_there(cells, name):
            raise ValueError(_missing(name, cells))
    media = next((name for name in cells if is_read and folded(name) in _MEDIA and _is_filled(cells[name])), None)
    if media is not None and media not in columns.values():
        raise ValueError(f"content other than text is not read: column {media}. Leave such rows or the column out")
    places = dict.fromkeys((*settings.places, *settings.where, *settings.without, *columns.values()))
    for name, cell in cells.items():
        if is_read and name not in places and (calls := calls_at(name, parsed(cell))) is not None:
            raise ValueError(
                f"column {excerpt(calls, _SHOWN)} has calls or results of tools, which are read from the text only if "
                "it is a list of parts. Write the chats as lists of messages with tool_calls, or leave the column out"
            )
    kept = {**links(cells), **{name: value_at(cells, name) for name in places}}
    if (name := next((name for name in cells if folded(name) in MESSAGE_IDS), None)) is not None:
        kept[_ID] = cells[name]
    if binary := next((name for name, cell in kept.items() if isinstance(cell, bytes)), None):
        raise ValueError(f"column {binary} is not a text: it has {len(kept[binary])} bytes that are not UTF-8")
    content = json.dumps(kept, default=str, ensure_ascii=False)
    content.encode()
    return content


def _is_filled(cell: Any) -> bool:
    """True if a cell is neither empty, nor false, nor zero."""
    return parsed(cell) not in (None, "", [], {}, False, 0, "0", "false", "False")


def _missing(name: str, cells: Mapping[str, Any]) -> str:
    return f"no column {name}: the record has {excerpt(', '.join(cells), 300) or 'none'}"


def _why_left_out(row: Mapping[str, Any], settings: MessageRows) -> str:
    if (reason := _why_excluded(row, settings)) is not None:
        return f"row: {reason}"
    return f"row: the speaker {excerpt(_text(row[settings.speaker or ''] or None), 40)} is ignored"


def _tag(speaker: Any, settings: MessageRows) -> str | None:
    """Meaning of a speaker by the settings. True of a JSON file and True of a CSV file that Python wrote are "true".

    An empty cell is null, because CSV has no other null.
    """
    text = _text(None if speaker == "" else speaker)
    return settings.tags.get(text) or (settings.tags.get(text.lower()) if text in ("True", "False") else None)


def _is_ignored(cells: Mapping[str, Any], settings: MessageRows) -> bool:
    speaker = value_at(cells, settings.speaker) if settings.speaker is not None else None
    return _tag(speaker, settings) == "ignore"


def _is_left_out(cells: Mapping[str, Any], settings: MessageRows) -> bool:
    return _is_excluded(cells, settings) or _is_ignored(cells, settings)


def _is_excluded(cells: Mapping[str, Any], settings: MessageRows) -> bool:
    return _why_excluded(cells, settings) is not None


def _why_excluded(cells: Mapping[str, Any], settings: MessageRows) -> str | None:
    if any(_text(value_at(cells, name)) not in accepted for name, accepted in settings.where.items()):
        return f"{' or '.join(settings.where)} is not one of those in where"
    left_out = (name for name, values in settings.without.items() if _text(value_at(cells, name)) in values)
    return next((f"{name} is one of those in without" for name in left_out), None)


def _text(value: Any) -> str:
    """A cell as text: true is "true", 7 is "7"."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _fields(
    database: sqlite3.Connection,
    table: _Table,
    settings: MessageRows,
    columns: Mapping[str, str],
    data: dict[str, Any],
) -> Converted:
    chat = data["chat"]
    query = "SELECT content FROM rows WHERE chat = ? ORDER BY number LIMIT ?"
    rows = [from_json(content) for (content,) in database.execute(query, (chat, MAX_MESSAGES + 1))]
    if len(rows) > MAX_MESSAGES:
        raise ValueError(f"over-long chat: over {MAX_MESSAGES} messages")
    if (problem := next((row[_PROBLEM] for row in rows if _PROBLEM in row), None)) is not None:
        raise ValueError(problem)
    distinct = _without_repeats(rows)
    excluded = [row for row in distinct if _is_left_out(row, settings)]
    ordered = _ordered([row for row in distinct if not _is_left_out(row, settings)], table, settings)
    spoken = [_messages(row, settings) for row in ordered]
    speakers = [*(None for _ in excluded), *map(_speaker, spoken)]
    shown = shown_versions([*excluded, *ordered], speakers)[len(excluded) :]
    messages = _joined(message for parts, is_shown in zip(spoken, shown, strict=True) if is_shown for message in parts)
    ignored = [_why_left_out(row, settings) for row in excluded] + ([] if all(shown) else [OTHER_BRANCHES])
    ignored += [_REPEATED] * (len(rows) - len(distinct))
    logged = LoggedChat(messages=messages, ignored=tuple(ignored))
    fields = {**chat_fields(logged, users=settings.users), **ChatOrigin(id=chat, source=SOURCE).fields()}
    return merge_fields(fields, map_cells(columns, ordered[0])), logged.all_ignored


def _joined(messages: Iterable[LoggedMessage]) -> tuple[LoggedMessage, ...]:
    """Messages in which calls that follow each other are of one message, because the agent made them in one step."""
    joined: list[LoggedMessage] = []
    for message in messages:
        if message.tool_calls and joined and joined[-1].tool_calls:
            last = joined.pop()
            texts = [text for text in (last.content, message.content) if text]
            calls = (*last.tool_calls, *message.tool_calls)
            message = replace(message, content="\n".join(texts), tool_calls=calls)
        joined.append(message)
    return tuple(joined)


def _speaker(messages: Sequence[LoggedMessage]) -> str | None:
    """Speaker of a row. None if it has the result of a call, because several results may follow one message."""
    return messages[0].role if messages and messages[0].role != "tool" else None


def _without_repeats(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without those that are equal to an earlier one with the same id of a message.

    If different rows have the same id, it is not the id of a message, and all rows are read.
    """
    distinct: list[dict[str, Any]] = []
    by_id: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.get(_ID) in (None, ""):
            distinct.append(row)
        elif (name := _text(row[_ID])) not in by_id:
            by_id[name] = row
            distinct.append(row)
        elif by_id[name] != row:
            return list(rows)
    return distinct


def _times(cell: Callable[[str], Any], settings: MessageRows) -> tuple[float, ...]:
    """Values of the order columns in a row. Raises `ValueError` if one of them cannot be read."""
    times = []
    for name in settings.orders:
        try:
            times.append(instant(cell(name)))
        except ValueError as error:
            shown = excerpt(_text(cell(name)), _SHOWN)
            raise ValueError(f"order cannot be read: column {name} is {shown}, {error}") from error
    return tuple(times)


def _ordered(rows: Sequence[dict[str, Any]], table: _Table, settings: MessageRows) -> list[dict[str, Any]]:
    """Rows by their order columns. Rows with the same time keep the order of the table, from its end if it falls.

    Times of day without a date do not sort rows, because a conversation may go on after midnight.
    """
    if not settings.orders:
        return list(rows)
    if len(settings.orders) == 1 and all(time_of_day(row[settings.orders[0]]) is not None for row in rows):
        return list(reversed(rows)) if table.falls > table.rises else list(rows)
    read = reversed(rows) if table.newest_first else rows
    return sorted(read, key=lambda row: _times(row.__getitem__, settings))


def _messages(row: Mapping[str, Any], settings: MessageRows) -> list[LoggedMessage]:
    """Messages of a row: one, a message and its reply, or a message with calls and their results."""
    if settings.reply is not None:
        reply = row[settings.reply]
        replies = [] if reply in (None, "") else _spoken("assistant", reply, settings.reply)
        return [*_spoken("user", row[settings.text], settings.text), *replies]
    speaker = row[settings.speaker or ""]
    meaning = _tag(speaker, settings) or SPEAKERS.get(speaker_name(speaker))
    if meaning not in _ROLES:
        raise ValueError(
            f"unknown speaker: {excerpt(_text(speaker or None), _SHOWN)} in column {settings.speaker}. Say in the "
            "source's tags whether it is the user or the assistant, or ignore it"
        )
    return _spoken(meaning, row[settings.text], settings.text)


def _is_printed_text(cell: str, value: Any) -> bool:
    """True for a message text that looks like a list printed by Python. A list of message parts is parsed instead."""
    types = {part.get("type") for part in value if isinstance(part, dict)} if isinstance(value, list) else set()
    return cell.lstrip().startswith(("[{'", "['")) and not types <= _PRINTED_PARTS


def _spoken(role: Role, cell: Any, column: str) -> list[LoggedMessage]:
    """Messages of a cell: a text, or parts of a message, which may have calls with their results.

    Raises `ValueError` if the cell has anything else, because no speaker has written it.
    """
    value = parsed(cell)
    if isinstance(cell, str) and _is_printed_text(cell, value):
        return [LoggedMessage(role=role, content=cell)]
    if isinstance(value, list) and (
        value is cell or (value and all(isinstance(part, Mapping) and "type" in part for part in value))
    ):
        return list(parse_messages(list(split_parts({"role": role, "content": value}))))
    if isinstance(cell, Mapping):
        raise ValueError(f"column {column} is not a text: it has an object with {excerpt(', '.join(cell), _SHOWN)}")
    return [LoggedMessage(role=role, content="" if cell is None else _text(cell))]
