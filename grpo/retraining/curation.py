"""Curation of conversations for training: redaction and filters.

    records ─ schema ─ complete ─ licence ─ consent ─ redaction ─→ redacted ─ contamination ─ duplicates ─→ accepted
                └───────┴───────────┴─────────┴────────────────────────────────┴───────────────┴───────→ rejected

The filters up to redaction look at each conversation by itself. Their results are computed for each day on which
conversations began, and are kept (`grpo.retraining.curated_days`). Contamination and duplicates are kept by day as well
(`grpo.retraining.near_copies`). A day of a serving log is computed again only if its own records change. Here the rows
of all days are written in their order, a few thousand at a time.

A rejected conversation leaves its id, the filter and the reason, but never its text, because without consent nothing
may be kept.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from grpo.artifacts import local_path
from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource, Source
from grpo.data_errors import excerpt
from grpo.errors import BudgetError, DataError
from grpo.log.days import ChangedLogError, LogDays
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.retraining.curated_days import (
    BLOCK,
    COUNTS_KEY,
    ORIGIN_COLUMNS,
    REDACTED_COLUMNS,
    personal_counts,
    with_origin,
    write_block,
    write_day,
)
from grpo.retraining.curated_rows import CuratedRows, CuratedSource
from grpo.retraining.near_copies import DUPLICATES, Decisions, Parts, decide
from grpo.scenario import Origin, Scenario
from grpo.scenarios.quarantine import QuarantineReason, duplicate_id, reason_from_problem
from grpo.scenarios.readers.served import served_place
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import SCHEMA, BatchWriter, TableWriter, scenario_from_row, scenario_row
from grpo.storage.documents import Document
from grpo.tables import open_parquet

CONVERSATIONS = "conversations"
"""Kind of the artifact, and the version's tag that has the digest of the conversations known at its training."""
DAYS = "days"
"""Kind of the artifacts with the results of single days."""
ACCEPTED, REDACTED, REJECTED, LIVE = "accepted.parquet", "redacted.parquet", "rejected.parquet", "live.parquet"
REJECTIONS = pa.schema([("record", pa.string()), ("filter", pa.string()), ("reason", pa.string())])
LIVE_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.int64()),
        ("model", pa.string()),
        ("reward", pa.float64()),
        ("rating", pa.float64()),
    ]
)
"""Production metrics of the conversations of serving logs, also of rejected ones."""
_ATTEMPTS = 3


class CurationCounts(Document):
    """Counts of accepted and rejected conversations: `records = accepted + sum(rejected)`."""

    records: int
    accepted: int
    rejected: dict[str, int]
    """By filter and kind of reason."""
    redacted: dict[str, int]
    """Distinct values of personal data that were replaced, by kind."""
    redacted_conversations: int
    served: dict[str, int] = Field(default_factory=dict)
    """Counts of the joins of serving logs, see `grpo.log.join`."""


def curate_conversations(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    settings: CurationSettings,
    parts: Parts,
) -> CurationCounts:
    """Read, redact and filter conversations, and write the four tables into `folder`.

    `known` are the training scenarios. `heldout` are the scenarios that must not leak into training. Both are iterated
    more than once. `parts` keeps the results of single days. Raises `BudgetError` if more than
    `settings.max_unreadable_fraction` of the records are unreadable.
    """
    with tempfile.TemporaryDirectory() as scratch:
        joins: Counter[str] = Counter()
        read = [
            _served(source, settings, parts, joins)
            if isinstance(source, ServedSource)
            else _blocks(source, settings, Path(scratch) / str(number))
            for number, source in enumerate(sources)
        ]
        curated = _Curation(read, settings)
        return curated.write(folder, known, heldout, parts, joins)


def _served(source: ServedSource, settings: CurationSettings, parts: Parts, joins: Counter[str]) -> CuratedSource:
    """Curated days of a serving log. Adds the counts of its join to `joins`."""
    log, reread = ServedLog(local_path(source.path)), set[str]()
    for _ in range(_ATTEMPTS):
        days = LogDays(
            log, source.segments, lambda identity, write: parts.make("index_log_day", identity, write), reread=reread
        )
        try:
            paths = [_curated_day(days, number, source, settings, parts) for number in range(len(days.days))]
        except ChangedLogError as error:
            reread.update(error.folders)
            continue
        counts = Counter(join(()).counts.flat())
        for path in paths:
            counts.update(json.loads((open_parquet(path).schema_arrow.metadata or {})[COUNTS_KEY]))
        counts["damaged"] += len(days.problems)
        joins.update(counts)
        return CuratedSource(days=paths, place=served_place(source), folder=log.folder, problems=days.problems)
    raise DataError(f"the serving log {log.folder} changes while it is read. Start the retraining again")


def _curated_day(days: LogDays, number: int, source: ServedSource, settings: CurationSettings, parts: Parts) -> Path:
    day = days.days[number]
    filters = settings.model_dump(mode="json", include={"licences", "consents", "required_fields"})
    identity = {"records": day.digest, "users": source.users, **filters}
    return parts.make("curate_day", identity, lambda path: write_day(path, days.join(day), source, settings))


def _blocks(source: Source, settings: CurationSettings, scratch: Path) -> CuratedSource:
    """Curated records of another source. They are computed in every retraining, because only days are kept."""
    scratch.mkdir()
    paths: list[Path] = []
    records = iter(read_records(source))
    while block := list(islice(records, BLOCK)):
        paths.append(scratch / f"{len(paths)}.parquet")
        write_block(paths[-1], block, settings)
    return CuratedSource(days=paths)


class _Curation:
    """Rows of all sources, and the tables that they are written to."""

    def __init__(self, sources: Sequence[CuratedSource], settings: CurationSettings) -> None:
        self._sources, self._settings = sources, settings
        self._rows = CuratedRows(sources)
        self._repeated = self._rows.repeated_ids()
        self._is_unreadable = ~self._rows.is_scenario | self._repeated
        self._rejected: Counter[str] = Counter()

    def write(
        self,
        folder: Path,
        known: Iterable[Scenario],
        heldout: Iterable[Scenario],
        parts: Parts,
        joins: Mapping[str, int],
    ) -> CurationCounts:
        """Write the tables."""
        rows, problems = self._rows, sum(len(source.problems) for source in self._sources)
        records = len(rows) + problems
        self._check(int(self._is_unreadable.sum()) + problems, records)
        compared = np.flatnonzero(~self._is_unreadable & ~rows.is_rejected)
        days = rows.days(compared, self._sources)
        threshold = self._settings.near_duplicate_threshold
        texts = [rows.texts(day) for day in days]
        decisions = decide(texts, known=known, heldout=heldout, threshold=threshold, parts=parts)
        with TableWriter(folder / REJECTED, REJECTIONS) as rejected:
            for place, reason in self._unreadable():
                self._rejected[f"schema: {reason.kind}"] += 1
                rejected.add((place, "schema", reason.kind))
            accepted, personal = self._write_items(folder, rejected, days, decisions)
        self._write_live(folder / LIVE)
        counts = personal_counts(personal)
        return CurationCounts(
            records=records,
            accepted=accepted,
            rejected=dict(self._rejected.most_common()),
            redacted=dict(counts.most_common()),
            redacted_conversations=sum(count for text, count in personal.items() if text),
            served=dict(joins),
        )

    def _check(self, unreadable: int, records: int) -> None:
        bound = self._settings.max_unreadable_fraction
        if unreadable > bound * records:
            place, reason = next(self._unreadable())
            raise BudgetError(
                f"{unreadable} of {records} conversations cannot be read, at most {bound:.1%} may be. First: "
                f"{place} {reason.message}. Fix the source or raise curation.max_unreadable_fraction"
            )

    def _unreadable(self) -> Iterator[tuple[str, QuarantineReason]]:
        """Place and reason of each record that is not a scenario, in the order of records."""
        rows = self._rows
        for source, start, stop in zip(self._sources, rows.bounds, rows.bounds[1:], strict=False):
            own = np.flatnonzero(self._is_unreadable[start:stop]) + start
            for run, table in rows.read(own, ["id", "place", "reason", "message", "is_scenario"]):
                for number, row in zip(run.tolist(), table.to_pylist(), strict=True):
                    place = row["place"] or excerpt(f"{source.place}:{number - start + 1}")
                    if row["is_scenario"]:
                        yield place, duplicate_id(row["id"])
                    else:
                        yield place, QuarantineReason(message=row["message"], kind=row["reason"])
            for problem in source.problems:
                assert source.folder is not None
                place = excerpt(f"{source.folder / problem.place}:{problem.line}")
                yield place, reason_from_problem(problem.problem)

    def _write_items(
        self,
        folder: Path,
        rejected: TableWriter,
        days: Sequence[NDArray[np.int64]],
        decisions: Sequence[Decisions],
    ) -> tuple[int, Counter[str | None]]:
        """Write redacted, accepted and rejected conversations.

        Returns the number of accepted conversations, and the numbers of redacted ones by their personal data.
        """
        accepted, personal = 0, Counter[str | None]()
        senders, reasons = self._senders(days, decisions), _Reasons(days, decisions)
        columns = ["id", "filter", "reason", "personal", *REDACTED_COLUMNS, *ORIGIN_COLUMNS]
        with (
            BatchWriter(folder / REDACTED, SCHEMA) as redacted_table,
            BatchWriter(folder / ACCEPTED, SCHEMA) as accepted_table,
        ):
            for run, table in self._rows.read(np.flatnonzero(~self._is_unreadable), columns):
                is_redacted = table.column("filter").is_null().to_numpy()
                later = reasons.until(int(run[-1]))
                is_accepted = is_redacted & ~np.isin(run, list(later))
                rejections = table.select(["id", "filter", "reason"]).filter(pa.array(~is_accepted)).to_pylist()
                for number, row in zip(run[~is_accepted].tolist(), rejections, strict=True):
                    name, reason = later.get(number) or (row["filter"], row["reason"])
                    self._rejected[f"{name}: {reason.partition(':')[0]}"] += 1
                    rejected.add((row["id"], name, reason))
                redacted = table.filter(pa.array(is_redacted))
                for count in redacted.column("personal").value_counts().to_pylist():
                    personal[count["values"]] += count["counts"]
                redacted_table.add(redacted.select(REDACTED_COLUMNS).rename_columns(SCHEMA.names))
                accepted_table.add(self._accepted(table.filter(pa.array(is_accepted)), senders))
                accepted += int(is_accepted.sum())
        return accepted, personal

    def _senders(self, days: Sequence[NDArray[np.int64]], decisions: Sequence[Decisions]) -> dict[str, list[str]]:
        """Keys that sent the copies of a conversation, by its id.

        If ten keys sent copies of one conversation, it stays one conversation that counts for each of these keys.
        """
        rows, senders = self._rows, dict[str, dict[str, None]]()
        for day, decided in zip(days, decisions, strict=True):
            for place, name, _, match in decided.reasons():
                if name == DUPLICATES:
                    senders.setdefault(match, {})[rows.sender_names[rows.sender[day[place]]]] = None
        return {name: list(keys) for name, keys in senders.items()}

    def _accepted(self, table: pa.Table, senders: Mapping[str, Sequence[str]]) -> pa.Table:
        """Rows of accepted conversations with their senders, also the keys that sent copies of them."""
        rows = table.select(REDACTED_COLUMNS).rename_columns(SCHEMA.names)
        cells = {name: table.column(f"origin_{name}").to_pylist() for name in ("metadata", "hash")}
        for place, name in enumerate(table.column("id").to_pylist()):
            if name not in senders:
                continue
            origin = Origin.model_validate(json.loads(cells["metadata"][place])["origin"])
            keys = tuple(dict.fromkeys([*origin.keys, *senders[name]]))
            if keys != origin.keys:
                scenario = scenario_from_row(rows.slice(place, 1).to_pylist()[0])
                row, _ = scenario_row(with_origin(scenario, origin.model_copy(update={"keys": keys})))
                for column, values in cells.items():
                    values[place] = row[SCHEMA.names.index(column)]
        for column, values in cells.items():
            rows = rows.set_column(SCHEMA.names.index(column), SCHEMA.field(column), pa.array(values, pa.string()))
        return rows

    def _write_live(self, path: Path) -> None:
        rows = self._rows
        with BatchWriter(path, LIVE_SCHEMA) as live:
            for source, start, stop in zip(self._sources, rows.bounds, rows.bounds[1:], strict=False):
                if source.folder is not None:
                    for _, table in rows.read(np.arange(start, stop), LIVE_SCHEMA.names):
                        live.add(table.filter(pc.is_valid(table.column("model"))))


class _Reasons:
    """Rejections of compared conversations in the order of rows."""

    def __init__(self, days: Sequence[NDArray[np.int64]], decisions: Sequence[Decisions]) -> None:
        self._upcoming = (
            (int(day[place]), (name, reason))
            for day, decided in zip(days, decisions, strict=True)
            for place, name, reason, _ in decided.reasons()
        )
        self._next = next(self._upcoming, None)

    def until(self, row: int) -> dict[int, tuple[str, str]]:
        """Filter and reason of each rejected row up to this row that no earlier call has returned."""
        reasons = {}
        while self._next is not None and self._next[0] <= row:
            reasons[self._next[0]] = self._next[1]
            self._next = next(self._upcoming, None)
        return reasons
