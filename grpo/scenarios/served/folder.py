"""Folder of the serving log, and its records as they are read.

    segments/20261122T030000-3fa1c0….log             append-only; deleted once it is in Parquet
    turns/2026-11-22/20261122T030000-3fa1c0….parquet     the turns of one segment and day
    feedback/2026-11-22/20261122T030000-3fa1c0….parquet
    damaged/2026-11-22/20261122T030000-3fa1c0….parquet   places of lines that were not records
    erasures/7c1f….json                              digests of the users and conversations that were erased

A segment is the truth until it is gone: a compaction that was killed left Parquet files, which are not read while the
segment is there. A snapshot names segments, those that may grow with their end: `20261122T030000-3fa1c0…:81920`. It
reads the same records before and after compaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grpo.errors import DataError
from grpo.scenarios.data_errors import problem_text, try_call
from grpo.scenarios.readers.arrow import ParquetRows
from grpo.scenarios.served.lines import read_lines
from grpo.scenarios.served.records import Erasure, Record, ServedTurn
from grpo.scenarios.served.tables import SCHEMA_VERSION, VERSION_KEY, Damage, record_from_row
from grpo.tables import open_parquet

SEGMENTS, TURNS, FEEDBACK, DAMAGED, ERASURES = "segments", "turns", "feedback", "damaged", "erasures"
SEGMENT_SUFFIX = ".log"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEntry:
    """Record of the log with its place. Exactly one of `record` and `problem` is None."""

    source: str
    line: int
    """Number of the line or row in its file, from 1."""
    record: Record | None
    problem: str | None = None
    end: int = 0
    """Position in the segment after the record."""


class ServedLog:
    """A serving log to read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def segments(self) -> dict[str, Path]:
        """Segments that are not compacted, by name, oldest first."""
        return {path.stem: path for path in sorted((self.folder / SEGMENTS).glob(f"*{SEGMENT_SUFFIX}"))}

    def tables(self, name: str = "*") -> list[Path]:
        """Parquet files of a compacted segment, or of all."""
        kinds = (TURNS, FEEDBACK, DAMAGED)
        return [path for kind in kinds for path in sorted(self.folder.glob(f"{kind}/*/{name}.parquet"))]

    def snapshot(self) -> tuple[str, ...]:
        """Names of all segments, those that may grow with the end of their last complete record."""
        growing = {}
        for name, path in self.segments().items():  # before the tables: a segment is compacted first and deleted then
            content = _bytes(path)
            if content is not None:
                end = content.rfind(b"\n") + 1
                growing[name] = f"{name}:{end}"
        compacted = {path.stem for path in self.tables()} - growing.keys()
        return tuple(sorted([*growing.values(), *compacted]))

    def read(self, snapshot: Sequence[str] | None = None) -> Iterator[ServedEntry]:
        """Each record with its place, in the order of segments; damage is an entry with a problem.

        Erased records are left out. Raises `DataError` for a segment of the snapshot that is gone.
        """
        erasures = self.erasures()
        for pinned in self.snapshot() if snapshot is None else snapshot:
            name, _, end = pinned.partition(":")
            for entry in self._entries(name, int(end) if end else None):
                if entry.record is None or not is_record_erased(entry.record, erasures):
                    yield entry

    def turns_of(self, conversations: Set[str]) -> list[ServedTurn]:
        """Turns of these conversations by their time, erased ones left out; other records are not converted."""
        names = [name.encode() for name in conversations]
        records: list[Record | Damage] = []
        for path in self.segments().values():
            lines = (_bytes(path) or b"").splitlines(keepends=True)
            content = b"".join(line for line in lines if any(name in line for name in names))
            records += [line.content for line in read_lines(content)]
        for path in self.folder.glob(f"{TURNS}/*/*.parquet"):
            rows = try_call(lambda path=path: _rows_of(path, conversations))  # type: ignore[misc]
            records += [] if isinstance(rows, Exception) else rows  # gone meanwhile, or damaged: `read` says so
        erasures = self.erasures()
        turns = {
            record.id: record
            for record in records
            if isinstance(record, ServedTurn)
            and record.conversation_id in conversations
            and not is_record_erased(record, erasures)
        }
        return sorted(turns.values(), key=lambda turn: (turn.time, turn.choice))

    def digest(self, snapshot: Sequence[str]) -> str:
        """Digest of a snapshot and of the erasures; compaction does not change it.

        It has the content of tables, and of a segment that may grow its name and end: what is written is not changed.
        """
        digest = hashlib.sha256()
        for pinned in snapshot:
            contents = [] if ":" in pinned else [path.read_bytes() for path in self.tables(pinned)]
            for part in (pinned.encode(), *contents):
                digest.update(hashlib.sha256(part).digest())
        for path in sorted(self.folder.glob(f"{ERASURES}/*.json")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def erasures(self) -> tuple[Erasure, ...]:
        """Erasures, which hold for records until their time."""
        return tuple(read_erasure(path) for path in sorted(self.folder.glob(f"{ERASURES}/*.json")))

    def _entries(self, name: str, end: int | None) -> Iterator[ServedEntry]:
        path = self.folder / SEGMENTS / f"{name}{SEGMENT_SUFFIX}"
        content = _bytes(path)
        if content is not None:
            for line in read_lines(content if end is None else content[:end]):
                yield _entry(str(path), line.number, line.content, line.end)
            return
        tables = self.tables(name)
        if not tables and end != 0:
            raise DataError(
                f"segment {name} of the serving log {self.folder} is gone: it passed its retention, or was removed; "
                "start the retraining again"
            )
        for table in tables:
            yield from table_entries(table, end)


def table_entries(path: Path, end: int | None = None, *, after: int = 0) -> Iterator[ServedEntry]:
    """Entries of a Parquet file, those between two positions of its segment; damage ends the file with one entry."""
    number = 0
    try:
        file = ParquetRows(path)
        version = (file.schema.metadata or {}).get(VERSION_KEY, b"none").decode(errors="replace")
        if version != SCHEMA_VERSION:
            raise DataError(f"{path} has serving log version {version}, this code reads {SCHEMA_VERSION}")
        for row in file.read(file.names):
            number = row.number
            position = row.cells.get("end", 0)
            if 0 < position <= after or (end is not None and position > end):
                continue
            content = try_call(partial(_row_content, row.cells))
            if row.problem is not None or isinstance(content, Exception):
                problem = row.problem or problem_text(content, "not a record")  # type: ignore[arg-type]
                yield ServedEntry(source=str(path), line=number, record=None, problem=problem, end=position)
            else:
                yield _entry(str(path), number, content, position)
    except DataError as error:
        yield ServedEntry(source=str(path), line=number + 1, record=None, problem=f"damaged file: {error}")


def is_record_erased(record: Record, erasures: Sequence[Erasure]) -> bool:
    """True for a record whose user or conversation was erased after it was received."""
    user = record.user if isinstance(record, ServedTurn) else ""
    return is_erased(erasures, time=record.time, conversation_id=record.conversation_id, user=user)


def is_erased(erasures: Sequence[Erasure], *, time: datetime, conversation_id: str, user: str = "") -> bool:
    """True where an erasure holds for a record of this time, conversation and user."""
    return any(
        time <= erasure.time
        and (
            name_digest(conversation_id) in erasure.conversations or (bool(user) and name_digest(user) in erasure.users)
        )
        for erasure in erasures
    )


def name_digest(name: str) -> str:
    """sha256 of a name."""
    return hashlib.sha256(name.encode()).hexdigest()


def erasure_document(erasure: Erasure) -> str:
    """JSON of an erasure."""
    return json.dumps(
        {
            "time": erasure.time.isoformat(),
            "users": sorted(erasure.users),
            "conversations": sorted(erasure.conversations),
        }
    )


def read_erasure(path: Path) -> Erasure:
    """Erasure of a document. Raises `DataError`."""
    try:
        document = json.loads(path.read_bytes())
        return Erasure(
            time=datetime.fromisoformat(document["time"]),
            users=frozenset(document["users"]),
            conversations=frozenset(document["conversations"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"erasure {path} cannot be read: {error}; repeat the erasure and delete the file") from error


def _rows_of(path: Path, conversations: Set[str]) -> list[Record]:
    """Turns of these conversations in a Parquet file, of which other columns are read only where it has some."""
    file = open_parquet(path)
    chosen = pc.is_in(file.read(["conversation_id"]).column(0), pa.array(sorted(conversations)))
    if not pc.any(chosen).as_py():
        return []
    return [record_from_row(row) for row in file.read().filter(chosen).to_pylist()]


def _row_content(row: dict[str, Any]) -> Record | Damage:
    if "bytes" in row:
        return Damage(line=row["line"], bytes=row["bytes"], reason=row["reason"])
    return record_from_row(row)


def _entry(source: str, number: int, content: Record | Damage, end: int) -> ServedEntry:
    if isinstance(content, Damage):
        place = f"line {content.line}, {content.bytes} bytes"
        reason, _, detail = content.reason.partition(": ")
        problem = f"{reason}: {detail}, {place}"
        return ServedEntry(source=source, line=number, record=None, problem=problem, end=end)
    return ServedEntry(source=source, line=number, record=content, end=end)


def _bytes(path: Path) -> bytes | None:
    """Content of a segment; None once it was compacted."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
