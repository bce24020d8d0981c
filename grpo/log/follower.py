"""Records of a serving log after a position, for a reader that follows the log.

position {}                     all records
position {"…3fa1c0": 81920}     records of this segment after byte 81920, in the segment or in its Parquet files
position {"…3fa1c0": -1}        none of this segment, because it is compacted and read to its end
position {"merged-…": -1}       none of the segments of this merged table
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo.errors import DataError
from grpo.log.folder import SEGMENT_SUFFIX, SEGMENTS, Problem, ServedLog, is_record_erased, table_rows
from grpo.log.lines import read_lines
from grpo.log.log_tables import LogTable
from grpo.log.records import Record
from grpo.log.tables import SEGMENT, Damage
from grpo.tables import open_parquet

FULLY_READ = -1
"""Position of a compacted segment without further records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStep:
    """Step of a reader: a record and the position after it."""

    segment: str
    end: int
    record: Record | None
    """None for an erased or damaged record, and at the end of a compacted segment."""


@dataclass(slots=True)
class LogReader:
    """Reader of a log that continues from a position."""

    folder: Path
    position: dict[str, int] = field(default_factory=dict)
    """Bytes of each segment that were read."""

    def unread(self) -> Iterator[LogStep]:
        """Records after the position, segment by segment. Only `advance` moves the position."""
        growing, compacted = self._unread()
        erasures = ServedLog(self.folder).erasures()
        for name in sorted(growing | compacted.keys()):
            steps = self._lines(name) if name in growing else self._rows(compacted[name])
            for segment, end, record in steps:
                erased = record is not None and is_record_erased(record, erasures)
                yield LogStep(segment=segment, end=end, record=None if erased else record)
            if name in compacted:
                yield LogStep(segment=name, end=FULLY_READ, record=None)

    def advance(self, step: LogStep) -> None:
        """Mark a record as read."""
        self.position[step.segment] = step.end

    def waiting(self) -> int:
        """Number of records after the position."""
        growing, compacted = self._unread()
        lines = sum(self._rest(name).count(b"\n") for name in growing)
        return lines + sum(self._rows_after(table) for tables in compacted.values() for table in tables)

    def _unread(self) -> tuple[set[str], dict[str, list[LogTable]]]:
        """Segments that may grow, and the tables with unread records by their names.

        Segments and tables that are gone are removed from the position. If all segments of a merged table were read,
        the table replaces them in the position.
        """
        log = ServedLog(self.folder)
        growing = set(log.segments())  # before the tables: a segment is deleted after its compaction
        compacted: dict[str, list[LogTable]] = defaultdict(list)
        for table in log.tables():
            if table.name not in growing:
                compacted[table.name].append(table)
        needed = growing | compacted.keys()
        for name, tables in compacted.items():
            segments = {segment for table in tables if table.is_merged for segment in table.segments}
            if segments and all(self.position.get(segment) == FULLY_READ for segment in segments):
                self.position[name] = FULLY_READ
            needed |= segments if self.position.get(name) != FULLY_READ else set()
        for name in self.position.keys() - needed:
            del self.position[name]
        return growing, {name: tables for name, tables in compacted.items() if self.position.get(name) != FULLY_READ}

    def _lines(self, name: str) -> Iterator[tuple[str, int, Record | None]]:
        start = self.position.get(name, 0)
        for line in read_lines(self._rest(name)):
            yield name, start + line.end, None if isinstance(line.content, Damage) else line.content

    def _rest(self, name: str) -> bytes:
        """Bytes of a segment after its position. Empty if it was compacted since it was listed."""
        try:
            with (self.folder / SEGMENTS / f"{name}{SEGMENT_SUFFIX}").open("rb") as file:
                file.seek(self.position.get(name, 0))
                return file.read()
        except FileNotFoundError:
            return b""

    def _rows(self, tables: Sequence[LogTable]) -> Iterator[tuple[str, int, Record | None]]:
        """LogStep rows of the tables with one name, segment by segment, in the order in which they were written."""
        position = dict(self.position)
        rows = heapq.merge(*(table_rows(table.path) for table in tables), key=lambda row: (row.segment, row.end))
        for row in rows:
            if row.end and not _is_before(position, row.segment, row.end):
                yield row.segment, row.end, None if isinstance(row.content, Problem) else row.content

    def _rows_after(self, table: LogTable) -> int:
        columns = ["end", SEGMENT] if table.is_merged else ["end"]
        try:
            rows = open_parquet(table.path).read(columns).to_pylist()
        except (DataError, OSError, ValueError):  # expired since, or damaged: `unread` reports it
            return 0
        return sum(not _is_before(self.position, row.get(SEGMENT, table.name), row["end"]) for row in rows)


def _is_before(position: Mapping[str, int], segment: str, end: int) -> bool:
    """True if a record was read, because its whole segment was read or because it is before the position."""
    read = position.get(segment, 0)
    return read == FULLY_READ or end <= read
