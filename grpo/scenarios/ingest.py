"""Ingestion: sources → a table of scenarios, and a table of quarantined records with their reasons."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from grpo import progress
from grpo.config.scenarios import Source
from grpo.data_errors import EXCERPT_CHARS, LONGEST_LINE, excerpt, try_call
from grpo.errors import BudgetError, DataError, StorageError
from grpo.scenario import Scenario
from grpo.scenarios.quarantine import QuarantineReason, reason_from_error, reason_from_problem
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records, source_name
from grpo.scenarios.table import QUARANTINE_SCHEMA, SCHEMA, TableRow, TableWriter, scenario_row

SCENARIOS_FILE, QUARANTINE_FILE = "scenarios.parquet", "quarantine.parquet"
"""Names of both tables in the folder of an ingestion."""
_REPORT_EVERY = 10_000  # records
_SECTIONS: dict[str, object] = {"expected": {}, "metadata": {}}  # a default that is a model is deep-copied: 15 µs
_PATH_CHARS = 4096
_NAMED = 3  # records that an error names
_PARTS = 50  # distinct parts that are left out and counted by name
_OTHERS = "other parts"


class SourceCounts(BaseModel):
    """Counts of one source: `records = scenarios + quarantined`, `scenarios = scripted + goals`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Its path or function, and its kind."""
    records: int = 0
    scenarios: int = 0
    quarantined: int = 0
    scripted: int = 0
    """Scenarios with `user_responses`."""
    goals: int = 0
    """Scenarios with only a goal."""
    with_tools: int = 0
    with_replay: int = 0
    """Scenarios with recorded calls, which the environment `replay` answers."""
    left_out: dict[str, int] = {}
    """Number of scenarios by the part of their record that was left out, each part with the reason."""


class IngestCounts(BaseModel):
    """Counts of an ingestion: `records = scenarios + quarantined`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    records: int
    scenarios: int
    quarantined: int
    reasons: dict[str, int]
    """Quarantined records by kind of reason, most frequent first. Numbers in a reason are written N."""
    sources: tuple[SourceCounts, ...]
    """Counts of each source, in their order."""


def ingest(
    sources: Sequence[Source],
    scenarios_path: Path,
    quarantine_path: Path,
    *,
    max_quarantined_fraction: float,
    most: int | None = None,
) -> IngestCounts:
    """Read every record of the sources into the table of scenarios, or into quarantine with a reason.

    If two records have the same id, the first is used. Memory does not grow with the sources. With `most` only that
    many records of each source are read, for a look before a run.

    Raises `DataError` if a source is missing or empty, or if no record of all sources is usable. Raises `BudgetError`
    if more than `max_quarantined_fraction` of the records are quarantined, but only if all records were read.
    """
    tally = _Tally()
    with (
        SeenIds() as seen_ids,
        TableWriter(scenarios_path, SCHEMA) as table,
        TableWriter(quarantine_path, QUARANTINE_SCHEMA) as quarantine,
    ):
        for finished, source in enumerate(sources):
            tally.begin(source_name(source))
            for record in islice(read_records(source), most):
                outcome = _add(record, seen_ids, table)
                if isinstance(outcome, QuarantineReason):
                    quarantine.add(_quarantine_row(record, outcome.message), EXCERPT_CHARS)
                tally.add(record, outcome)
                if tally.records % _REPORT_EVERY == 0:
                    tally.report(finished, len(sources))
    tally.report(len(sources), len(sources))
    counts = tally.counts()
    cut = most is not None and any(source.records == most for source in counts.sources)
    tally.check(1.0 if cut else max_quarantined_fraction)
    return counts


class SeenIds:
    """Ids with their places, in a temporary file on disk, so that memory does not grow with their number."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # SQLite deletes a nameless database on closing
        self._database.executescript("""
            PRAGMA journal_mode = OFF;
            PRAGMA synchronous = OFF;
            PRAGMA cache_size = -32000; -- KiB
            CREATE TABLE seen (id TEXT PRIMARY KEY, source TEXT, line INTEGER) WITHOUT ROWID;
            BEGIN;
        """)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, scenario_id: str, source: str, line: int) -> str | None:
        """Add a new id and return None, or return the place `source:line` of the record that has it."""
        try:
            cursor = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (scenario_id, source, line))
        except sqlite3.OperationalError as error:
            raise StorageError(f"ids cannot be kept on disk: {error}. Free space or set TMPDIR elsewhere") from error
        if cursor.rowcount == 1:
            return None
        first = self._database.execute("SELECT source, line FROM seen WHERE id = ?", (scenario_id,)).fetchone()
        return f"{first[0]}:{first[1]}"


class _Tally:
    """Counts during an ingestion."""

    def __init__(self) -> None:
        self.records = 0
        self.quarantined = 0
        self._kinds: Counter[str] = Counter()
        self._first: list[str] = []
        self._sources: list[tuple[str, Counter[str], Counter[str]]] = []

    def begin(self, source: str) -> None:
        self._sources.append((source, Counter(), Counter()))

    def add(self, record: SourceRecord, outcome: QuarantineReason | Scenario) -> None:
        self.records += 1
        counts = self._sources[-1][1]
        counts["records"] += 1
        if isinstance(outcome, Scenario):
            counts["scenarios"] += 1
            counts["scripted" if outcome.user_responses else "goals"] += 1
            counts["with_tools"] += bool(outcome.tools)
            counts["with_replay"] += bool(outcome.world.get("recorded"))
            left_out = self._sources[-1][2]
            left_out.update(
                {part if part in left_out or len(left_out) < _PARTS else _OTHERS for part in record.ignored}
            )
            return
        self.quarantined += 1
        counts["quarantined"] += 1
        self._kinds[outcome.kind] += 1
        if len(self._first) < _NAMED:
            self._first.append(f"{record.source}:{record.line} {outcome.message}")

    def report(self, done: int, total: int) -> None:
        progress.report("ingest", done, total, records=self.records, quarantined=self.quarantined)

    def check(self, max_quarantined_fraction: float) -> None:
        if not self.records:
            raise DataError("the sources hold no record. Add one that does to scenarios.sources")
        fraction = self.quarantined / self.records
        if fraction > max_quarantined_fraction:
            raise BudgetError(
                f"{self.quarantined} of {self.records} records ({fraction:.1%}) cannot be used, "
                f"at most {max_quarantined_fraction:.1%} may be. First: {'; '.join(self._first)}. "
                "Fix the sources or raise scenarios.max_quarantined_fraction"
            )
        if self.quarantined == self.records:
            raise DataError(
                f"none of {self.records} records can be used. First: {'; '.join(self._first)}. Fix the sources"
            )

    def counts(self) -> IngestCounts:
        return IngestCounts(
            records=self.records,
            scenarios=self.records - self.quarantined,
            quarantined=self.quarantined,
            reasons=dict(self._kinds.most_common()),
            sources=tuple(
                SourceCounts(name=name, **counts, left_out=dict(left_out.most_common()))
                for name, counts, left_out in self._sources
            ),
        )


def _add(record: SourceRecord, seen_ids: SeenIds, table: TableWriter) -> QuarantineReason | Scenario:
    """Add the record's scenario to the table and return it, or return the reason for its quarantine."""
    if record.problem is not None:
        return reason_from_problem(record.problem)
    built = try_call(lambda: _build(record.data or {}))
    if isinstance(built, Exception):
        return reason_from_error(built)
    scenario, row, size = built
    if size > LONGEST_LINE:
        kind = "over-long record"
        return QuarantineReason(message=f"{kind}: {size} characters, at most {LONGEST_LINE}", kind=kind)
    place = seen_ids.add(scenario.id, excerpt(record.source, _PATH_CHARS), record.line)
    if place is not None:
        return QuarantineReason(message=f"duplicate id {scenario.id}: taken by {place}", kind="duplicate id")
    table.add(row, size)
    return scenario


def _build(data: Mapping[str, Any]) -> tuple[Scenario, TableRow, int]:
    scenario = Scenario.model_validate({**_SECTIONS, **data})
    return scenario, *scenario_row(scenario)


def _quarantine_row(record: SourceRecord, reason: str) -> TableRow:
    raw = record.raw or ("" if record.data is None else record.data)
    return excerpt(record.source, _PATH_CHARS), record.line, excerpt(reason), excerpt(raw)
