"""Conversation log: conversations of a served policy with its users, one Parquet file per day and call of `write`.

    conversations/2026-11-21/3fa1c0….parquet     one row per conversation; files are added, never changed
    conversations/2026-11-22/…

A file is named by its content and renamed into place when it is complete. Therefore concurrent writers need no lock, a
writer that is killed leaves no incomplete table, and writing the same conversations again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from grpo.data_errors import problem_text, try_call
from grpo.errors import DataError
from grpo.log.conversation import LoggedConversation
from grpo.messages import Message
from grpo.parquet_rows import ParquetRows
from grpo.storage.files import storage_errors
from grpo.tables import calls_from_json, calls_to_json

SCHEMA_VERSION = "1"
_VERSION_KEY = b"conversation_log_version"

_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("model", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("reward", pa.float64()),
        ("rating", pa.float64()),
        ("domain", pa.string()),
        ("category", pa.string()),
        ("tools", pa.string()),
        ("world", pa.string()),
        ("expected", pa.string()),
        ("licence", pa.string()),
        ("consent", pa.string()),
    ],
    metadata={_VERSION_KEY: SCHEMA_VERSION},
)


class ConversationLog:
    """A conversation log in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, conversations: Iterable[LoggedConversation]) -> tuple[Path, ...]:
        """Add conversations, one file per day. Each file appears complete or not at all."""
        ordered = sorted(conversations, key=lambda conversation: (conversation.time, conversation.id))
        days = groupby(ordered, key=lambda conversation: conversation.time.astimezone(UTC).date().isoformat())
        return tuple(self._add(day, list(of_day)) for day, of_day in days)

    def _add(self, day: str, conversations: list[LoggedConversation]) -> Path:
        content = BytesIO()
        pq.write_table(pa.Table.from_pylist(list(map(_row, conversations)), SCHEMA), content, compression="zstd")
        data = content.getvalue()
        path = self.folder / day / f"{hashlib.sha256(data).hexdigest()[:20]}.parquet"
        with storage_errors(str(self.folder)):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{uuid.uuid4().hex}.part")
            try:
                partial.write_bytes(data)
                os.replace(partial, path)
            finally:
                partial.unlink(missing_ok=True)
        return path

    def files(self) -> tuple[str, ...]:
        """Files of the log, by day, relative to the folder."""
        return tuple(str(path.relative_to(self.folder)) for path in sorted(self.folder.glob("*/*.parquet")))

    def read(self, files: Sequence[str] | None = None) -> Iterator[LogEntry]:
        """Each conversation with its place.

        If a row is damaged or is not a conversation, its entry has a problem. If a file is damaged inside, one entry
        with the number of the first lost row stands for the rest of the file. Raises `DataError` if one of `files` is
        missing.
        """
        for name in self.files() if files is None else files:
            path = self.folder / name
            if not path.is_file():
                raise DataError(f"no file {path} in the conversation log. Restore it, or start the retraining again")
            yield from _entries(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """Row of the log. Exactly one of `conversation` and `problem` is None."""

    source: str
    line: int
    """Number of the row in its file, from 1."""
    conversation: LoggedConversation | None
    problem: str | None = None


def _entries(path: Path) -> Iterator[LogEntry]:
    source, number = str(path), 0
    try:
        file = ParquetRows(path)
        version = (file.schema.metadata or {}).get(_VERSION_KEY, b"none").decode(errors="replace")
        if version != SCHEMA_VERSION:
            raise DataError(f"{path} has conversation log version {version}, this code reads {SCHEMA_VERSION}")
        for row in file.read(file.names):
            number = row.number
            conversation = try_call(partial(read_row, row.cells))
            problem = row.problem and f"not a conversation: {row.problem}"
            if isinstance(conversation, Exception):
                problem = problem or problem_text(conversation, "not a conversation")
                yield LogEntry(source=source, line=number, conversation=None, problem=problem)
            else:
                yield LogEntry(
                    source=source, line=number, conversation=None if problem else conversation, problem=problem
                )
    except DataError as error:
        yield LogEntry(source=source, line=number + 1, conversation=None, problem=f"damaged file: {error}")


def read_row(row: dict[str, Any]) -> LoggedConversation:
    """Parse a row. Raises the exceptions of `Message` and `LoggedConversation` if it is not a conversation."""
    messages = tuple(
        Message(role=part["role"], content=part["content"] or "", tool_calls=calls_from_json(part["tool_calls"]))
        for part in row["messages"] or ()
    )
    nested = {name: from_json(row[name], allow_inf_nan=False) for name in ("tools", "world", "expected") if row[name]}
    plain = {name: value for name, value in row.items() if value is not None}
    return LoggedConversation.model_validate({**plain, **nested, "messages": messages})


def _row(conversation: LoggedConversation) -> dict[str, Any]:
    messages = [
        {"role": message.role, "content": message.content, "tool_calls": calls_to_json(message.tool_calls)}
        for message in conversation.messages
    ]
    return {
        **{name: getattr(conversation, name) for name in SCHEMA.names},
        "messages": messages,
        "tools": _json(conversation, conversation.tools),
        "world": _json(conversation, conversation.world),
        "expected": _json(conversation, conversation.expected.model_dump(exclude_defaults=True)),
    }


def _json(conversation: LoggedConversation, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"conversation {conversation.id} cannot be stored as JSON: {error}. Fix its records") from error
