"""Merging of the serving log: the tables of all segments that began on a day become one table per kind and day.

Without merging, each server adds a file every hour, and a reader has to open all of them. The source files stay for an
hour after the merge, because a reader may have listed them already.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.errors import DataError
from grpo.log.folder import ServedLog
from grpo.log.log_tables import (
    DAMAGED,
    FEEDBACK,
    MERGED,
    SEGMENTS_KEY,
    TURNS,
    LogTable,
    find_tables,
    tables_in,
)
from grpo.log.segments import exclusive, open_private, sync_folder
from grpo.log.tables import DAMAGE, MERGED_VERSION, SEGMENT, VERSION_KEY
from grpo.log.tables import FEEDBACK as FEEDBACK_SCHEMA
from grpo.log.tables import TURNS as TURNS_SCHEMA
from grpo.storage.files import storage_errors
from grpo.tables import open_checked

SCHEMAS = {TURNS: TURNS_SCHEMA, FEEDBACK: FEEDBACK_SCHEMA, DAMAGED: DAMAGE}
ROWS = 512  # per row group
_READABLE_S = 3600.0
"""Time that a source file is kept after it was merged."""


def merge_days(folder: Path, *, today: date | None = None) -> int:
    """Merge the tables of the days before yesterday (UTC), and return the number of merged days.

    If a segment of a day is still being written, or one of its tables is damaged, that day stays unmerged for now.
    Raises `StorageError` if the disk is full.
    """
    last = (today or datetime.now(UTC).date()) - timedelta(days=1)
    count = 0
    for day, places in sorted(_days(folder).items()):
        if day < f"{last:%Y%m%d}":
            with storage_errors(str(folder)), exclusive(folder):  # one lock per day, so that an erasure can run between
                count += _merge_day(folder, day, sorted(places))
    with storage_errors(str(folder)), exclusive(folder):
        remove_merged(folder, before=time() - _READABLE_S)
    return count


def remove_merged(folder: Path, *, before: float | None = None) -> None:
    """Remove the source files of merged files that were written before `before`, or at any time if it is None.

    If a merged file cannot be read completely, it is removed instead, as long as its source files are still there.
    """
    by_place: dict[Path, list[LogTable]] = defaultdict(list)
    for table in find_tables(folder):
        by_place[table.path.parent].append(table)
    for tables in by_place.values():
        for merged in filter(lambda table: table.is_merged, tables):
            parts = [table.path for table in tables if not table.is_merged and table.name in merged.segments]
            if parts and (before is None or merged.path.stat().st_mtime < before):
                for path in parts if _is_whole(merged.path) else [merged.path]:
                    path.unlink()


def _is_whole(path: Path) -> bool:
    """True if all pages of a file can be read. Reads one row group at a time, because a day may be large."""
    try:
        for _ in open_checked(path).iter_batches(batch_size=ROWS):
            pass
    except (DataError, pa.ArrowException, OSError):
        return False
    return True


def _days(folder: Path) -> dict[str, set[Path]]:
    """Days on which segments began that are compacted but not merged, e.g. `20261122`, and the folders of their tables.

    A day is left out if one of its segments is still being written or compacted.
    """
    log, days = ServedLog(folder), defaultdict(set)
    written = {name[:8] for name in log.segments()}  # before the tables: a segment is deleted after its compaction
    for table in log.tables():
        if not table.is_merged and table.name[:8] not in written:
            days[table.name[:8]].add(table.path.parent)
    return days


def _merge_day(folder: Path, day: str, listed: Sequence[Path]) -> bool:
    """Merge the segments that began on a day and have tables in the listed folders.

    Returns False if there are fewer than two, or if one is still being written.
    """
    places: dict[Path, list[LogTable]] = defaultdict(list)
    for table in (table for place in listed for table in tables_in(place)):
        if table.name.startswith(day) and not table.is_merged_already:
            places[table.path.parent].append(table)
    names = sorted({table.name for tables in places.values() for table in tables})
    if len(names) < 2 or any(name.startswith(day) for name in ServedLog(folder).segments()):
        return False
    stem = f"{MERGED}{day}-{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]}"
    written: dict[Path, Path] = {}
    try:
        for place, tables in places.items():
            hidden = place / f".{uuid.uuid4().hex}"
            written[hidden] = place / f"{stem}.parquet"
            _write(hidden, tables)
    except (DataError, pa.ArrowException):  # readers report which table is damaged
        return False
    except OSError as error:
        if error.errno is not None:  # an error of the system, e.g. a full disk
            raise
        return False  # a page that differs from its checksum
    else:
        for hidden, path in written.items():
            hidden.replace(path)
            sync_folder(path.parent)
        return True
    finally:
        for hidden in written:
            hidden.unlink(missing_ok=True)


def _write(path: Path, tables: Sequence[LogTable]) -> None:
    """Write the rows of these tables, each with its segment, and a digest per segment."""
    digests = {table.name: table.digest(table.name).hex() for table in tables}
    metadata = {VERSION_KEY: MERGED_VERSION.encode(), SEGMENTS_KEY: json.dumps(digests).encode()}
    schema = SCHEMAS[tables[0].kind].append(pa.field(SEGMENT, pa.string())).with_metadata(metadata)
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    with open_private(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        for group in _row_groups(tables, schema):
            writer.write_table(group, row_group_size=ROWS)


def _row_groups(tables: Sequence[LogTable], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows of the tables, in parts of at least `ROWS` rows except the last. A column that a table lacks is null."""
    waiting: list[pa.Table] = []
    for table in tables:
        content = open_checked(table.path).read()
        content = content.append_column(SEGMENT, pa.array([table.name] * len(content), pa.string()))
        missing = pa.nulls(len(content))
        columns = [content[name] if name in content.schema.names else missing for name in schema.names]
        waiting.append(pa.table(columns, names=schema.names).cast(schema))
        if sum(map(len, waiting)) >= ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
