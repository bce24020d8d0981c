"""Folder of the serving log, and the reader of its records.

    segments/20261122T030000-3fa1c0….log             append-only; deleted once it is in Parquet
    turns/2026-11-22/20261122T030000-3fa1c0….parquet     the turns of one segment and day
    turns/2026-11-22/merged-20261122-5d03….parquet       the turns of all segments that began on a day, once it is over
    feedback/2026-11-22/20261122T030000-3fa1c0….parquet
    damaged/2026-11-22/20261122T030000-3fa1c0….parquet   places of lines that were not records
    erasures/7c1f….json                              digests of the users and conversations that were erased

Until a segment is deleted, its Parquet files are ignored, because a compaction that was killed may have left them
incomplete. Once a merged table has a segment, the table of that one segment is ignored. A snapshot names merged tables
and segments. If a segment may still grow, its name comes with its end: `20261122T030000-3fa1c0…:81920`. A snapshot
reads the same records before and after compaction and merging.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grpo.data_errors import problem_text, try_call
from grpo.errors import DataError
from grpo.log.lines import read_lines
from grpo.log.log_tables import TURNS, LogTable, find_tables
from grpo.log.records import Erasure, Record, ServedTurn
from grpo.log.tables import SCHEMA_VERSIONS, SEGMENT, VERSION_KEY, Damage, record_from_row
from grpo.parquet_rows import ParquetRows
from grpo.storage.files import file_digest
from grpo.tables import open_checked

SEGMENTS, ERASURES = "segments", "erasures"
SEGMENT_SUFFIX = ".log"
_OTHER_FORMAT = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]/*.parquet"
"""Tables of whole conversations, one folder per day, which other servers have written. The log has no such folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A line or row of the log that is not a record."""

    place: str
    """Path of its file in the folder of the log."""
    line: int
    """Number of the line or row in its file, from 1."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Row of a table of the log, with its position in the segment that it was written to."""

    segment: str
    end: int
    """Position in the segment after the record."""
    content: Record | Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Rows of a table of the log: all rows, or only the rows of some segments."""

    table: LogTable
    segments: frozenset[str] | None = None
    """None for all rows."""

    @property
    def place(self) -> str:
        """Kind, day and name of the table."""
        return f"{self.table.kind}/{self.table.path.parent.name}/{self.table.path.name}"

    def digest(self, *, whole: bool = False) -> str:
        """Digest of the table and of the chosen segments.

        With `whole` all bytes of the file are digested, else only what `LogTable.digest` reads.
        """
        chosen = None if self.segments is None else sorted(self.segments)
        content = file_digest(self.table.path) if whole else self.table.digest(self.table.name).hex()
        text = json.dumps([self.place, content, chosen])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """Lines of a segment that may grow. It may have been compacted since the part was listed."""

    path: Path
    end: int
    """Position after the last line that belongs to the part."""


class ServedLog:
    """A serving log to read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def segments(self) -> dict[str, Path]:
        """Segments that are not compacted, by name, oldest first."""
        return {path.stem: path for path in sorted((self.folder / SEGMENTS).glob(f"*{SEGMENT_SUFFIX}"))}

    def tables(self) -> list[LogTable]:
        """Parquet files of the log by kind, day and name, without the files that a merged file has replaced."""
        return [table for table in find_tables(self.folder) if not table.is_merged_already]

    def tables_by_segment(self) -> dict[str, list[LogTable]]:
        """Tables of each compacted segment."""
        tables = defaultdict(list)
        for table in self.tables():
            for name in table.segments:
                tables[name].append(table)
        return tables

    def snapshot(self) -> tuple[str, ...]:
        """Names of all merged tables and segments.

        If a segment may still grow, its name comes with the end of its last complete record.
        """
        growing = {}
        for name, path in self.segments().items():  # before the tables: a segment is deleted after its compaction
            content = _bytes(path)
            if content is not None:
                end = content.rfind(b"\n") + 1
                growing[name] = f"{name}:{end}"
        compacted = {table.name for table in self.tables()} - growing.keys()
        if not growing and not compacted and any(self.folder.glob(_OTHER_FORMAT)):
            raise DataError(
                f"{self.folder} has tables of conversations in a format that is not read. Append them to a serving log "
                "in another folder by grpo.log.append, see docs/retraining.md"
            )
        return tuple(sorted([*growing.values(), *compacted]))

    def read(self, snapshot: Sequence[str] | None = None) -> Iterator[Record | Problem]:
        """Each record in the order of segments, and a problem for each damaged one. Erased records are left out.

        Raises `DataError` if a segment of the snapshot is gone.
        """
        erasures = self.erasures()
        for part in self.parts(self.snapshot() if snapshot is None else snapshot):
            for item in self.read_part(part):
                if isinstance(item, Problem) or not is_record_erased(item, erasures):
                    yield item

    def turns_of(self, conversations: Set[str]) -> list[ServedTurn]:
        """Turns of these conversations by their time, without erased ones.

        Lines and rows of other conversations are not converted, because conversion is slow.
        """
        names = [name.encode() for name in conversations]
        records: list[Record | Damage] = []
        for path in self.segments().values():
            lines = (_bytes(path) or b"").splitlines(keepends=True)
            content = b"".join(line for line in lines if any(name in line for name in names))
            records += [line.content for line in read_lines(content)]
        for table in self.tables():
            if table.kind != TURNS:
                continue
            rows = try_call(lambda path=table.path: _records_of(path, conversations.__contains__))  # type: ignore[misc]
            records += [] if isinstance(rows, Exception) else rows  # deleted since, or damaged: `read` reports it
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
        """Digest of a snapshot and of the erasures, which neither compaction nor merging changes.

        It covers the content of tables. Of a segment that may grow it covers only the name and the end, because a
        segment is append-only.
        """
        digest, by_name = hashlib.sha256(), self._tables_by_name()
        for pinned in snapshot:
            digest.update(hashlib.sha256(pinned.encode()).digest())
            for table in by_name.get(pinned, ()):
                digest.update(table.digest(pinned))
        for path in sorted(self.folder.glob(f"{ERASURES}/*.json")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def erasures(self) -> tuple[Erasure, ...]:
        """Erasures. Each holds for records that were received until its time."""
        return tuple(read_erasure(path) for path in sorted(self.folder.glob(f"{ERASURES}/*.json")))

    def _tables_by_name(self) -> dict[str, list[LogTable]]:
        """Tables by each name under which a snapshot may list them: a merged table's own name, and its segments."""
        by_name: dict[str, list[LogTable]] = defaultdict(list, self.tables_by_segment())
        for table in self.tables():
            if table.is_merged:
                by_name[table.name].append(table)
        return by_name

    def parts(self, snapshot: Sequence[str]) -> list[TablePart | SegmentPart]:
        """Files that have the records of a snapshot: tables in the order of names, then segments that may grow.

        Raises `DataError` if a compacted segment of the snapshot is gone.
        """
        growing = dict(pinned.split(":") for pinned in snapshot if ":" in pinned)
        named = {pinned for pinned in snapshot if ":" not in pinned}
        by_name = self._tables_by_name()
        for name in sorted(named - by_name.keys()):
            raise self._gone(name)
        parts: list[TablePart | SegmentPart] = []
        for table in {table.path: table for name in sorted(named) for table in by_name[name]}.values():
            is_whole = table.is_merged and table.name in named
            segments = None if is_whole else frozenset(named & table.segments.keys())
            parts.append(TablePart(table=table, segments=segments))
        for name, end in growing.items():
            path = self.folder / SEGMENTS / f"{name}{SEGMENT_SUFFIX}"
            parts.append(SegmentPart(path=path, end=int(end)))
        return parts

    def read_part(self, part: TablePart | SegmentPart) -> Iterator[Record | Problem]:
        """Records of a part, also erased ones, and a problem for each damaged one."""
        if isinstance(part, TablePart):
            for row in table_rows(self.present(part.table), segments=part.segments):
                yield row.content
            return
        content, name = _bytes(part.path), part.path.stem
        if content is not None:
            for line in read_lines(content[: part.end]):
                yield _content(f"{SEGMENTS}/{part.path.name}", line.number, line.content)
            return
        tables = self.tables_by_segment().get(name, [])
        if not tables and part.end != 0:
            raise self._gone(name)
        for table in tables:
            for row in table_rows(table.path, part.end, segments={name}):
                yield row.content

    def part_records(self, part: TablePart | SegmentPart, is_wanted: Callable[[str], bool]) -> Iterator[Record]:
        """Records of the wanted conversations in a part, also erased ones.

        In an undamaged table only their rows are converted. Segments and damaged tables are read record by record.
        """
        if isinstance(part, TablePart):
            records = try_call(lambda: _records_of(self.present(part.table), is_wanted, part.segments))
            if not isinstance(records, Exception):
                yield from records
                return
        for item in self.read_part(part):
            if not isinstance(item, Problem) and is_wanted(item.conversation_id):
                yield item

    def present(self, table: LogTable) -> Path:
        """The table's file, or the merged file that has replaced it since the tables were listed."""
        if table.path.exists():
            return table.path
        later = self.tables_by_segment().get(table.name, [])
        return next((other.path for other in later if other.path.parent == table.path.parent), table.path)

    def _gone(self, name: str) -> DataError:
        return DataError(
            f"segment {name} of the serving log {self.folder} is gone, because it passed its retention or was removed. "
            "Start the retraining again"
        )


def table_rows(path: Path, end: int | None = None, *, segments: Set[str] | None = None) -> Iterator[TableRow]:
    """Rows of a table of the log up to a position of its segment.

    If `segments` are given, only their rows are read. If the file is damaged, the last row has the problem.
    """
    place = f"{path.parents[1].name}/{path.parent.name}/{path.name}"
    number = 0
    try:
        file = ParquetRows(path)
        _check_version(path, file.schema)
        for row in file.read(file.names):
            number = row.number
            position, segment = row.cells.get("end", 0), row.cells.get(SEGMENT) or path.stem
            if (end is not None and position > end) or (segments is not None and segment not in segments):
                continue
            content = try_call(partial(_row_content, row.cells))
            if row.problem is not None or isinstance(content, Exception):
                text = row.problem or problem_text(content, "not a record")  # type: ignore[arg-type]
                problem = Problem(place=place, line=number, problem=text)
                yield TableRow(segment=segment, end=position, content=problem)
            else:
                yield TableRow(segment=segment, end=position, content=_content(place, number, content))
    except DataError as error:
        problem = Problem(place=place, line=number + 1, problem=f"damaged file: {error}")
        yield TableRow(segment="", end=0, content=problem)


def is_record_erased(record: Record, erasures: Sequence[Erasure]) -> bool:
    """True if the record's user or conversation was erased after the record was received.

    A turn with the status `erased` stays, because it has nothing of its user or conversation.
    """
    if isinstance(record, ServedTurn) and record.status == "erased":
        return False
    user = record.user if isinstance(record, ServedTurn) else ""
    return is_erased(erasures, time=record.time, conversation_id=record.conversation_id, user=user)


def is_erased(erasures: Sequence[Erasure], *, time: datetime, conversation_id: str, user: str = "") -> bool:
    """True if an erasure holds for a record of this time, conversation and user."""
    if not erasures:
        return False
    conversation, of_user = name_digest(conversation_id), name_digest(user) if user else ""
    return any(
        time <= erasure.time and (conversation in erasure.conversations or of_user in erasure.users)
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
            "callers": sorted(erasure.callers),
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
            callers=frozenset(document.get("callers", ())),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"erasure {path} cannot be read: {error}. Repeat the erasure and delete the file") from error


def _records_of(path: Path, is_wanted: Callable[[str], bool], segments: Set[str] | None = None) -> list[Record]:
    """Records of the wanted conversations in a table.

    The column of conversations is read first, and the other columns only if it has a wanted one. Raises the exceptions
    of Arrow and of records if the table is damaged, and `DataError` if it has another version.
    """
    file = open_checked(path)
    _check_version(path, file.schema_arrow)
    names = file.read(["conversation_id"]).column(0)
    wanted = pa.array([name for name in names.unique().to_pylist() if is_wanted(name)], pa.string())
    if not len(wanted):
        return []
    rows = file.read().filter(pc.is_in(names, wanted)).to_pylist()
    return [record_from_row(row) for row in rows if segments is None or (row.get(SEGMENT) or path.stem) in segments]


def _check_version(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY, b"none").decode(errors="replace")
    if version not in SCHEMA_VERSIONS:
        raise DataError(
            f"{path} has serving log version {version}, but this release reads {', '.join(SCHEMA_VERSIONS)}. Use the "
            "release that wrote it"
        )


def _row_content(row: dict[str, Any]) -> Record | Damage:
    if "bytes" in row:
        return Damage(line=row["line"], bytes=row["bytes"], reason=row["reason"])
    return record_from_row(row)


def _content(place: str, number: int, content: Record | Damage) -> Record | Problem:
    if isinstance(content, Damage):
        reason, _, detail = content.reason.partition(": ")
        problem = f"{reason}: {detail}, line {content.line}, {content.bytes} bytes"
        return Problem(place=place, line=number, problem=problem)
    return content


def _bytes(path: Path) -> bytes | None:
    """Content of a segment, or None if it was compacted and deleted."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
