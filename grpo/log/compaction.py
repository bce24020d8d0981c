"""Compaction of the serving log to Parquet, its retention, and the erasure of a user's records.

    compact    closed segment → Parquet by day, then the segment is deleted       if killed anywhere, it is done again
    expire     folders of days before the retention are deleted
    erase      every segment is closed and compacted, an erasure document written, then the tables without the records

Each of them holds the folder's lock, so that only one process works at a time. Writers do not wait for this lock.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.errors import ConfigError, DataError, StorageError
from grpo.log.folder import (
    ERASURES,
    ServedLog,
    erasure_document,
    is_erased,
    is_record_erased,
    name_digest,
)
from grpo.log.lines import read_lines
from grpo.log.log_tables import DAMAGED, FEEDBACK, TURNS, LogTable
from grpo.log.merging import ROWS, SCHEMAS, remove_merged
from grpo.log.records import Erasure, Record, ServedTurn
from grpo.log.segments import closed_segment, exclusive, sync_folder, write_private
from grpo.log.tables import Damage, damage_row, record_row
from grpo.storage.files import storage_errors
from grpo.tables import open_parquet

_WAIT_S = 30.0
_POLL_S = 0.05
_CONVERTED = 32  # rows at a time, because the conversion holds Python's lock, so that the server has to wait


def compact(folder: Path) -> int:
    """Move every closed segment into Parquet, and return their number. Raises `StorageError` if the disk is full."""
    with storage_errors(str(folder)), exclusive(folder):
        return _compact(folder)


def expire(folder: Path, retention_days: int, *, today: date | None = None) -> int:
    """Delete the records of days that are more than `retention_days` before today (UTC), and return how many days.

    A segment that is still being written is not read, so its records expire only after it is compacted.
    """
    if retention_days < 1:
        raise ConfigError(f"retention_days {retention_days} would keep no turn. Set it to at least 1")
    oldest = ((today or datetime.now(UTC).date()) - timedelta(days=retention_days)).isoformat()
    days = set()
    with storage_errors(str(folder)), exclusive(folder):
        for path in [path for kind in SCHEMAS for path in folder.glob(f"{kind}/*")]:
            if path.name < oldest:
                days.add(path.name)
                shutil.rmtree(path)
    return len(days)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRecords:
    """Records that an erasure has removed from the log."""

    erasure: Erasure
    id: str
    """Name of the erasure's document."""
    turns: int
    feedback: int


def erase_records(
    folder: Path,
    *,
    user: str | None = None,
    conversation_id: str | None = None,
    wait_s: float = _WAIT_S,
    note: Callable[[ErasedRecords], object] = lambda records: None,
) -> ErasedRecords | None:
    """Erase the turns and feedback of a user's conversations, or of one conversation. None if there are none.

    `user` is the hash in the log. `note` is called after the document is written, and after each table. If a turn is in
    progress while this runs, readers and the next compaction leave it out. Raises `StorageError` if a process goes on
    to write to its segment for longer than `wait_s`, and `DataError` if a table cannot be read.
    """
    if (user is None) == (conversation_id is None) or not (user or conversation_id):
        raise ConfigError(
            f"name either a user or a conversation to erase, got user {user!r}, conversation_id {conversation_id!r}"
        )
    log = ServedLog(folder)
    with storage_errors(str(folder)), exclusive(folder):
        for path in log.segments().values():
            _close(path, folder / ERASURES, wait_s)
            _compact(folder, [path])
        remove_merged(folder)
        names = {row["conversation_id"] for row in _owners(log) if user is not None and row["user"] == user}
        names |= {conversation_id} if conversation_id else set()
        rows = [row for row in _owners(log) if row["conversation_id"] in names]
        erasure = Erasure(
            time=datetime.now(UTC),
            users=frozenset([name_digest(user)] if user else []),
            conversations=frozenset(map(name_digest, names)),
            callers=frozenset(name_digest(f"{row['key']}/{row['user']}") for row in rows),
        )
        if not rows and not _has_feedback(log, names):
            return None
        records = ErasedRecords(erasure=erasure, id=write_erasure(folder, erasure), turns=0, feedback=0)
        note(records)
        for table in log.tables():
            if count := _remove(table, erasure):
                records = replace(records, **{table.kind: getattr(records, table.kind) + count})
                note(records)
    return records


def write_erasure(folder: Path, erasure: Erasure) -> str:
    """Write the document of an erasure durably, and return its id."""
    id = uuid.uuid4().hex
    write_private(folder / ERASURES / f"{id}.json", lambda file: file.write(erasure_document(erasure).encode()))
    return id


def _close(path: Path, documents: Path, wait_s: float) -> None:
    """Touch the folder of erasures, so that the writer of a segment begins another one, and wait until it has."""
    deadline = monotonic() + wait_s
    while True:
        os.utime(documents)
        with closed_segment(path, wait_s=_POLL_S) as closed:
            if closed or not path.exists():
                return
        if monotonic() >= deadline:
            raise StorageError(
                f"cannot erase: a process still writes to segment {path}, and did not begin another segment within "
                f"{wait_s:g} s. End that process and erase again"
            )


def _owners(log: ServedLog) -> Iterator[dict[str, str]]:
    """User, key and conversation of each turn in the tables, except turns that were erased while they ran."""
    columns = ["user", "key", "conversation_id", "status"]
    for table in log.tables():
        if table.kind == TURNS:
            yield from (row for row in _read(table.path, columns).to_pylist() if row["status"] != "erased")


def _has_feedback(log: ServedLog, names: Set[str]) -> bool:
    """True if the tables have feedback on one of these conversations, which may be there after its turns expired."""
    paths = (table.path for table in log.tables() if table.kind == FEEDBACK)
    return any(not names.isdisjoint(_read(path, ["conversation_id"]).column(0).to_pylist()) for path in paths)


def _remove(table: LogTable, erasure: Erasure) -> int:
    """Rewrite a table without its erased rows, and return how many there were."""
    if table.kind == DAMAGED:
        return 0
    names = [name for name in ("time", "conversation_id", "user", "status") if name in SCHEMAS[table.kind].names]
    kept = [
        row.pop("status", "") == "erased" or not is_erased(erasures=[erasure], **row)
        for row in _read(table.path, names).to_pylist()
    ]
    if all(kept):
        return 0
    _write_table(table.path, _read(table.path, None).filter(pa.array(kept, pa.bool_())))
    return len(kept) - sum(kept)


def _compact(folder: Path, paths: Iterable[Path] | None = None) -> int:
    log = ServedLog(folder)
    for kind in SCHEMAS:  # only these folders, because receipts of erasures are written without the lock
        for stale in folder.glob(f"{kind}/*/.*"):  # left by a compaction that was killed
            stale.unlink()
    count = 0
    for path in log.segments().values() if paths is None else paths:
        with closed_segment(path) as closed:
            if closed:
                _compact_segment(folder, path, log.erasures())
                count += 1
    return count


def _compact_segment(folder: Path, path: Path, erasures: Sequence[Erasure]) -> None:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in read_lines(path.read_bytes(), torn=True):
        kind, day, row = _place(path.stem, line.content)
        if isinstance(line.content, Damage) or not is_record_erased(line.content, erasures):
            rows[kind, day].append({**row, "end": line.end})
    for (kind, day), of_day in rows.items():
        starts = range(0, len(of_day), _CONVERTED)
        tables = [pa.Table.from_pylist(of_day[start : start + _CONVERTED], SCHEMAS[kind]) for start in starts]
        _write_table(folder / kind / day / f"{path.stem}.parquet", pa.concat_tables(tables))
    path.unlink()
    sync_folder(path.parent)


def _place(name: str, content: Record | Damage) -> tuple[str, str, dict[str, Any]]:
    """Table and day of a line, and its row. Damage belongs to the day on which the segment begins."""
    if isinstance(content, Damage):
        return DAMAGED, f"{name[:4]}-{name[4:6]}-{name[6:8]}", damage_row(content)
    kind = TURNS if isinstance(content, ServedTurn) else FEEDBACK
    return kind, content.time.astimezone(UTC).date().isoformat(), record_row(content)


def _read(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        return open_parquet(path).read(columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot erase: {path} cannot be read: {error}. Delete the file and erase again") from error


def _write_table(path: Path, table: pa.Table) -> None:
    options = {"compression": "zstd", "row_group_size": ROWS, "write_page_checksum": True}
    write_private(path, lambda file: pq.write_table(table, file, **options))
