"""Sources → one table of scenarios, and one of the records that cannot be used, each with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo import progress
from grpo.config.scenarios import Source
from grpo.errors import BudgetError, DataError
from grpo.scenarios.data_errors import EXCERPT_CHARS, excerpt, try_call
from grpo.scenarios.ids import SeenIds
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.readers.source_files import LONGEST_LINE
from grpo.scenarios.refusal import QuarantineReason, reason_from_error, reason_from_problem
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import QUARANTINE_SCHEMA, SCHEMA, TableRow, TableWriter, scenario_row

SCENARIOS_FILE, QUARANTINE_FILE = "scenarios.parquet", "quarantine.parquet"
"""Names of both tables where they lie in one folder."""
_REPORT_EVERY = 10_000  # records
_SECTIONS: dict[str, object] = {"expected": {}, "metadata": {}}  # a default that is a model is deep-copied: 15 µs
_PATH_CHARS = 4096
_NAMED = 3  # records that an error names


class IngestCounts(BaseModel):
    """What became of the records: `records = scenarios + quarantined`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    records: int
    scenarios: int
    quarantined: int
    reasons: dict[str, int]
    """Quarantined records by kind of reason, most frequent first; numbers in a reason are written N."""


def ingest(
    sources: Sequence[Source], scenarios_path: Path, quarantine_path: Path, *, max_quarantined_fraction: float
) -> IngestCounts:
    """Read every record of the sources into the table of scenarios, or into quarantine with a reason.

    Of two records with the same id the first is used. Memory does not grow with the sources.

    Raises `DataError` where a source is missing or empty or no record can be used, and `BudgetError` where more
    than `max_quarantined_fraction` of the records went into quarantine.
    """
    tally = _Tally()
    with (
        SeenIds() as taken,
        TableWriter(scenarios_path, SCHEMA) as table,
        TableWriter(quarantine_path, QUARANTINE_SCHEMA) as quarantine,
    ):
        for finished, source in enumerate(sources):
            for record in read_records(source):
                refusal = _admit(record, taken, table)
                if refusal is not None:
                    quarantine.add(_quarantine_row(record, refusal.reason), EXCERPT_CHARS)
                tally.add(record, refusal)
                if tally.records % _REPORT_EVERY == 0:
                    tally.report(finished, len(sources))
    tally.report(len(sources), len(sources))
    tally.check(max_quarantined_fraction)
    return tally.counts()


class _Tally:
    """Counts while ingestion goes on."""

    def __init__(self) -> None:
        self.records = 0
        self.quarantined = 0
        self._kinds: Counter[str] = Counter()
        self._first: list[str] = []

    def add(self, record: SourceRecord, refusal: QuarantineReason | None) -> None:
        self.records += 1
        if refusal is not None:
            self.quarantined += 1
            self._kinds[refusal.kind] += 1
            if len(self._first) < _NAMED:
                self._first.append(f"{record.source}:{record.line} {refusal.reason}")

    def report(self, done: int, total: int) -> None:
        progress.report("ingest", done, total, records=self.records, quarantined=self.quarantined)

    def check(self, max_quarantined_fraction: float) -> None:
        if not self.records:
            raise DataError("the sources hold no record; add one that does to scenarios.sources")
        share = self.quarantined / self.records
        if share > max_quarantined_fraction:
            raise BudgetError(
                f"{self.quarantined} of {self.records} records ({share:.1%}) cannot be used, "
                f"at most {max_quarantined_fraction:.1%} may be; first: {'; '.join(self._first)}; "
                "mend the sources or raise scenarios.max_quarantined_fraction"
            )
        if self.quarantined == self.records:
            raise DataError(
                f"none of {self.records} records can be used; first: {'; '.join(self._first)}; mend the sources"
            )

    def counts(self) -> IngestCounts:
        return IngestCounts(
            records=self.records,
            scenarios=self.records - self.quarantined,
            quarantined=self.quarantined,
            reasons=dict(self._kinds.most_common()),
        )


def _admit(record: SourceRecord, taken: SeenIds, table: TableWriter) -> QuarantineReason | None:
    """Add the record's scenario to the table, or say why not."""
    if record.problem is not None:
        return reason_from_problem(record.problem)
    built = try_call(lambda: _build(record.data or {}))
    if isinstance(built, Exception):
        return reason_from_error(built)
    scenario, row, size = built
    if size > LONGEST_LINE:
        return QuarantineReason(
            reason=f"over-long record: {size} characters, at most {LONGEST_LINE}", kind="over-long record"
        )
    place = taken.add(scenario.id, excerpt(record.source, _PATH_CHARS), record.line)
    if place is not None:
        return QuarantineReason(reason=f"duplicate id {scenario.id}: taken by {place}", kind="duplicate id")
    table.add(row, size)
    return None


def _build(data: Mapping[str, Any]) -> tuple[Scenario, TableRow, int]:
    scenario = Scenario.model_validate({**_SECTIONS, **data})
    return scenario, *scenario_row(scenario)


def _quarantine_row(record: SourceRecord, reason: str) -> TableRow:
    raw = record.raw or ("" if record.data is None else record.data)
    return excerpt(record.source, _PATH_CHARS), record.line, excerpt(reason), excerpt(raw)
