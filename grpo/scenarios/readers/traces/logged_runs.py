"""Calls of a model in an export of traces, grouped into chats.

A trace holds the calls of one answer. A session or thread holds the traces of one chat. Each call logs the messages
that the model read and its reply. The calls are joined in the order of their times:

    calls                                  chat
    U1 | A1,   U1 A1 U2 | A2               U1 A1 U2 A2         the history is repeated
    U1 | A1,   U2 | A2                     U1 A1 U2 A2         one turn per call
    U1 A1 U2 | A2,   U2 A2 U3 | A3         U1 A1 U2 A2 U3 A3   a window of the history
    U1 | A1,   U1 | B1                     U1 B1               a reply that was generated again

If the calls of a chat have different system prompts, they are not joined, because the chat has several agents.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic_core import from_json

from grpo.config.chats import LoggedUsers
from grpo.data_errors import excerpt, problem_text, try_call
from grpo.errors import StorageError
from grpo.scenarios.logged_chat import MAX_MESSAGES, ChatOrigin, LoggedChat, LoggedMessage, chat_fields
from grpo.scenarios.readers.messages.openai_format import parse_messages, parse_tools
from grpo.scenarios.records import Converted, SourceRecord, convert_record
from grpo.scenarios.times import instant

_ID_CHARS = 200
_TABLE = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -32000; -- KiB
    CREATE TABLE runs (number INTEGER PRIMARY KEY, chat TEXT, time REAL, line INTEGER, is_model INTEGER, content TEXT);
    CREATE INDEX by_chat ON runs (chat, time, number);
    BEGIN;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One entry of an export."""

    chat: str
    """Id of the session, thread or trace that it belongs to."""
    time: Any
    """Its start, see `grpo.scenarios.times.instant`. If it is empty, the run comes first."""
    messages: list[Any] | None
    """Messages that a model read, and its reply, in OpenAI's format. None for a tool or a chain."""
    tools: Any = None
    is_model: bool = True
    """False for the input and output of a whole trace, which are read only if no call of a model has messages."""
    ignored: tuple[str, ...] = ()
    """Parts of the input and the output that were not read, each with the reason."""


def read_runs(
    records: Iterable[SourceRecord],
    runs: Callable[[dict[str, Any]], Sequence[LoggedRun]],
    *,
    source: str,
    users: LoggedUsers,
) -> Iterator[SourceRecord]:
    """Group the runs of an export, and read one record per chat, at the line of its first run.

    If the runs of a line cannot be read, the line is a record of its own, with a problem. The runs are kept in a
    temporary file, so that memory does not grow with the export.
    """
    with closing(sqlite3.connect("", isolation_level=None)) as database:  # SQLite deletes a nameless database
        database.executescript(_TABLE)
        place = ""
        for record in records:
            place = record.source
            broken = _add(database, record, runs)
            if broken is not None:
                yield broken
        chats = "SELECT chat, MIN(line) FROM runs GROUP BY chat ORDER BY MIN(number)"
        for chat, line in database.execute(chats).fetchall():
            record = SourceRecord(source=place, line=line, data={"chat": chat}, raw=chat)
            yield convert_record(record, partial(_fields, database, source, users))


def _add(
    database: sqlite3.Connection, record: SourceRecord, runs: Callable[[dict[str, Any]], Sequence[LoggedRun]]
) -> SourceRecord | None:
    """Keep the runs of a record. If its runs cannot be read, return the record with its problem."""
    data = record.data
    if data is None:
        return record
    parsed = try_call(lambda: _rows(runs(data)))
    if isinstance(parsed, Exception):
        problem = str(parsed) if type(parsed) is ValueError else problem_text(parsed, "not as published")
        return replace(record, data=None, raw=record.raw or excerpt(data), problem=problem)
    try:
        database.executemany(
            "INSERT INTO runs (chat, time, line, is_model, content) VALUES (?, ?, ?, ?, ?)",
            [(chat, time, record.line, is_model, content) for chat, time, is_model, content in parsed],
        )
    except sqlite3.OperationalError as error:
        raise StorageError(f"runs cannot be kept on disk: {error}. Free space or set TMPDIR elsewhere") from error
    return None


def _rows(runs: Sequence[LoggedRun]) -> list[tuple[str, float, bool, str | None]]:
    if not runs:
        raise ValueError("no run: the list of the record is empty")
    return [_row(run) for run in runs]


def _row(run: LoggedRun) -> tuple[str, float, bool, str | None]:
    content = None if run.messages is None else _content(run)
    time = 0.0 if run.time in (None, "") else instant(run.time)
    return excerpt(run.chat, _ID_CHARS), time, run.is_model, content


def _content(run: LoggedRun) -> str:
    return json.dumps({"messages": run.messages, "tools": run.tools, "ignored": run.ignored})


def _fields(database: sqlite3.Connection, source: str, users: LoggedUsers, data: dict[str, Any]) -> Converted:
    """Fields of the scenario of one chat."""
    chat = data["chat"]
    rows = "FROM runs WHERE chat = ? AND content IS NOT NULL"
    (of_models,) = database.execute(f"SELECT COUNT(*) {rows} AND is_model", (chat,)).fetchone()
    contents = database.execute(
        f"SELECT content {rows} AND is_model = ? ORDER BY time, number", (chat, bool(of_models))
    )
    system: tuple[LoggedMessage, ...] | None = None
    messages: list[LoggedMessage] = []
    tools: dict[str, Any] = {}
    ignored: list[str] = []
    for (content,) in contents:
        run = from_json(content)
        ignored += run["ignored"]
        tools |= {tool["name"]: tool for tool in parse_tools(run["tools"], ignored)}
        prompt, spoken = _split(parse_messages(run["messages"]))
        if system is not None and prompt != system:
            raise ValueError("several system prompts: the chat has calls of several agents. Export one agent")
        system = prompt
        messages = join(messages, spoken)
        if len(messages) > MAX_MESSAGES:
            raise ValueError(f"over-long chat: over {MAX_MESSAGES} messages")
    if system is None:
        raise ValueError("no messages: no run of this chat has the messages of a model")
    logged = LoggedChat(messages=(*system, *messages), tools=tuple(tools.values()), ignored=tuple(ignored))
    fields = {**chat_fields(logged, users=users), **ChatOrigin(id=chat, source=source).fields()}
    return fields, logged.all_ignored


def _split(messages: Sequence[LoggedMessage]) -> tuple[tuple[LoggedMessage, ...], list[LoggedMessage]]:
    """The system messages that a call begins with, and the others."""
    count = next((number for number, message in enumerate(messages) if message.role != "system"), len(messages))
    return tuple(messages[:count]), list(messages[count:])


def join(chat: list[LoggedMessage], call: list[LoggedMessage]) -> list[LoggedMessage]:
    """Messages of a chat and of its next call, see the module."""
    # calls of one turn may begin alike by chance, so that a call of two messages is not taken for a repeated history
    shared = next((k for k, (a, b) in enumerate(zip(chat, call, strict=False)) if a != b), min(len(chat), len(call)))
    if shared == len(call):
        return chat
    if shared and (len(call) > 2 or len(call) == len(chat)):
        return call
    return [*chat, *call[_overlap(chat, call) :]]


def _overlap(chat: Sequence[LoggedMessage], call: Sequence[LoggedMessage]) -> int:
    """Messages at the end of a chat that a call begins with (Knuth, Morris and Pratt: linear in the messages)."""
    borders: list[int] = []
    matched = 0
    sequence: list[LoggedMessage | None] = [*call, None, *chat[-len(call) :]]
    for place, message in enumerate(sequence):
        matched = 0 if not place else borders[-1]
        while matched and sequence[matched] != message:
            matched = borders[matched - 1]
        matched += bool(place) and sequence[matched] == message
        borders.append(matched)
    return matched
