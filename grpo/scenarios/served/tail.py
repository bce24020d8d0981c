"""Records of a serving log after a position, for a reader that follows the log.

position {}                     all records
position {"…3fa1c0": 81920}     those of this segment after byte 81920, in the segment or in its Parquet files
position {"…3fa1c0": -1}        none of this segment, which is compacted
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grpo.errors import DataError
from grpo.scenarios.served.folder import SEGMENT_SUFFIX, SEGMENTS, ServedLog, is_record_erased, table_entries
from grpo.scenarios.served.lines import read_lines
from grpo.scenarios.served.records import Record
from grpo.scenarios.served.tables import Damage
from grpo.tables import open_parquet

READ = -1
"""Position of a compacted segment without further records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Step of a reader: a record and the position after it."""

    segment: str
    end: int
    record: Record | None
    """None for an erased or damaged record, and at the end of a compacted segment."""


@dataclass(slots=True)
class LogTail:
    """Reader of a log from a position on."""

    folder: Path
    position: dict[str, int] = field(default_factory=dict)
    """Bytes of each segment that were read."""

    def unread(self) -> Iterator[Unread]:
        """Records after the position, segment by segment; `advance` moves the position."""
        log = ServedLog(self.folder)
        growing, compacted = self._unread_segments()
        erasures = log.erasures()
        for name in sorted(growing | compacted):
            for end, record in self._lines(name) if name in growing else self._rows(log, name):
                erased = record is not None and is_record_erased(record, erasures)
                yield Unread(segment=name, end=end, record=None if erased else record)
            if name in compacted:
                yield Unread(segment=name, end=READ, record=None)

    def advance(self, step: Unread) -> None:
        """Take a record as read."""
        self.position[step.segment] = step.end

    def waiting(self) -> int:
        """Number of records after the position."""
        growing, compacted = self._unread_segments()
        lines = sum(self._rest(name).count(b"\n") for name in growing)
        tables = [(name, path) for name in compacted for path in ServedLog(self.folder).tables(name)]
        return lines + sum(self._rows_after(path, self.position.get(name, 0)) for name, path in tables)

    def _unread_segments(self) -> tuple[set[str], set[str]]:
        """Segments that may grow, and compacted ones that were not read; segments that are gone leave the position."""
        log = ServedLog(self.folder)
        growing = set(log.segments())  # before the tables: a segment is compacted first and deleted then
        compacted = {path.stem for path in log.tables()} - growing
        for gone in self.position.keys() - growing - compacted:
            del self.position[gone]
        return growing, {name for name in compacted if self.position.get(name) != READ}

    def _lines(self, name: str) -> Iterator[tuple[int, Record | None]]:
        start = self.position.get(name, 0)
        for line in read_lines(self._rest(name)):
            yield start + line.end, None if isinstance(line.content, Damage) else line.content

    def _rest(self, name: str) -> bytes:
        """Bytes of a segment after its position; none where it was compacted meanwhile."""
        try:
            with (self.folder / SEGMENTS / f"{name}{SEGMENT_SUFFIX}").open("rb") as file:
                file.seek(self.position.get(name, 0))
                return file.read()
        except FileNotFoundError:
            return b""

    def _rows(self, log: ServedLog, name: str) -> Iterator[tuple[int, Record | None]]:
        """Rows of all tables of a segment, in the order in which they were written."""
        after = self.position.get(name, 0)
        tables = [table_entries(path, after=after) for path in log.tables(name)]
        for entry in heapq.merge(*tables, key=lambda entry: entry.end):
            if entry.end:  # the end of a damaged file has no position
                yield entry.end, entry.record

    def _rows_after(self, path: Path, position: int) -> int:
        try:
            ends = open_parquet(path).read(["end"]).column("end").to_pylist()
        except (DataError, OSError, ValueError):  # expired meanwhile, or damaged: `unread` says so
            return 0
        return sum(end > position for end in ends)
