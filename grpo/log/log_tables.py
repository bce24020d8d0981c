"""Parquet files of the serving log, each of one segment and day, or merged from all segments that began on a day.

turns/2026-11-22/20261122T030000-3fa1c0….parquet    one segment
turns/2026-11-22/merged-20261122-5d03….parquet      its metadata has the digests of the files that it was made from
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq

from grpo.data_errors import try_call

TURNS, FEEDBACK, DAMAGED = "turns", "feedback", "damaged"
KINDS = (TURNS, FEEDBACK, DAMAGED)
MERGED = "merged-"
SEGMENTS_KEY = b"segments"
"""Metadata of a merged file: the sha256 of each segment's file by the segment's name, as JSON."""
_SUFFIX = ".parquet"
_TAIL = 8  # bytes: the length of the footer, and the magic number


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """Parquet file of the log."""

    path: Path
    segments: Mapping[str, str]
    """For each segment the digest of the file that was merged. A file that is not merged has its own name and no
    digest."""
    is_merged: bool
    is_merged_already: bool = False
    """True if a merged file of the same day has its segment."""

    @property
    def name(self) -> str:
        """Name of the file, without its suffix."""
        return self.path.stem

    @property
    def kind(self) -> str:
        """`turns`, `feedback` or `damaged`."""
        return self.path.parents[1].name

    def digest(self, name: str) -> bytes:
        """Digest of the table, or of one of its segments.

        A segment has the same digest before and after merging. For a whole merged file, only its length and its footer
        are digested, because the footer has the places of all pages and the digests of the segments.
        """
        if not self.is_merged:
            return hashlib.sha256(self.path.read_bytes()).digest()
        if name != self.name:
            return bytes.fromhex(self.segments[name])
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            footer = int.from_bytes(file.read(4), "little") + _TAIL
            file.seek(max(0, size - footer))
            return hashlib.sha256(size.to_bytes(8, "little") + file.read()).digest()


def find_tables(folder: Path) -> list[LogTable]:
    """All Parquet files of the log in this folder by kind, day and name."""
    return [table for kind in KINDS for day in _listed(folder / kind) for table in tables_in(day)]


def tables_in(day: Path | str) -> Iterator[LogTable]:
    """Parquet files in the folder of a kind and day, by name."""
    tables = [_table(Path(path)) for path in _listed(day) if path.endswith(_SUFFIX)]
    merged = {name for table in tables if table.is_merged for name in table.segments}
    for table in tables:
        yield replace(table, is_merged_already=True) if table.name in merged else table


def _table(path: Path) -> LogTable:
    if not path.name.startswith(MERGED):
        return LogTable(path=path, segments={path.stem: ""}, is_merged=False)
    state = try_call(path.stat)
    key = None if isinstance(state, Exception) else (state.st_size, state.st_mtime_ns)
    return LogTable(path=path, segments=_segments(path, key), is_merged=True)


@lru_cache(maxsize=4096)
def _segments(path: Path, key: tuple[int, int] | None) -> Mapping[str, str]:
    """Segments in the metadata of a merged file. Empty if it is damaged: the reader of its rows reports that."""
    metadata = try_call(lambda: json.loads((pq.read_schema(path).metadata or {})[SEGMENTS_KEY]))
    return {} if isinstance(metadata, Exception) else metadata


def _listed(folder: Path | str) -> list[str]:
    """Paths in a folder by their names. Empty if the folder is missing, or was removed since it was listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
