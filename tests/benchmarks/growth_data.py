"""Growth of what a year leaves: days of the serving log, scenarios, registered versions.

Each row is measured in a process of its own, on data of its size.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.config.scenarios import FileSource
from grpo.log.folder import ERASURES, SEGMENTS, ServedLog
from grpo.log.lines import encode
from grpo.log.merging import merge_days, remove_merged
from grpo.log.tables import TURNS, record_row
from grpo.registry import Registry
from grpo.registry.versions import list_versions
from grpo.scenarios.ingest import ingest
from tests.benchmarks.ingest import LINE
from tests.benchmarks.measure import apart, peak_growth_mib
from tests.benchmarks.page import Findings, Table
from tests.benchmarks.serve_rows import Bar, table
from tests.grpo.log.fixtures import turn
from tests.grpo.registry.making import put_into_service, put_version

SCALE = float(os.environ.get("BENCH_SCALE", "1"))
DAYS = tuple(max(3, int(SCALE * days)) for days in (30, 90, 365))
PODS, TURNS_AN_HOUR = 10, 11
SCENARIOS = tuple(int(SCALE * count) for count in (1_000, 10_000, 100_000))
VERSIONS = tuple(max(2, int(SCALE * count)) for count in (20, 200))
FIRST = date(2025, 1, 1)
R = TypeVar("R")


def measure() -> Findings:
    """A table of each growth, and the bars for the largest rows."""
    log = [apart(log_row, days) for days in DAYS]
    scenarios = [apart(ingest_row, count) for count in SCENARIOS]
    versions = [apart(versions_row, count) for count in VERSIONS]
    bars = [
        Bar(measure=f"digest of {DAYS[-1]} days of the log", value=log[-1][3], at_most=5, unit="s"),
        Bar(measure="disk of the merged log ÷ its records", value=log[-1][6], at_most=1.3),
        Bar(measure=f"ingest of {SCENARIOS[-1]:,} scenarios", value=scenarios[-1][1], at_most=60, unit="s"),
        Bar(measure="memory of that ingest", value=scenarios[-1][2], at_most=500, unit="MiB"),
        Bar(measure=f"list of {VERSIONS[-1]} versions", value=versions[-1][1], at_most=2, unit="s"),
        Bar(measure="look-up of the champion among them", value=versions[-1][2], at_most=2, unit="s"),
    ]
    return Findings(
        title="How the data grows",
        text=(
            f"The log is that of {PODS} servers with {TURNS_AN_HOUR} turns an hour each, a segment an hour and server, "
            "as they are compacted; then its days are merged. Its digest is made at each check of the triggers. "
            "Scenarios are read from JSONL. Versions are in MLflow's SQLite store, each promoted once."
        ),
        tables=(
            table(bars),
            _table(("days", "turns", "snapshot s", "digest s", "merge s a day", "files", "disk ÷ records"), log),
            _table(("scenarios", "s", "MiB"), scenarios),
            _table(("versions", "list s", "champion s"), versions),
        ),
    )


def _table(head: tuple[str, ...], rows: list[tuple[float, ...]]) -> Table:
    return Table(head=head, rows=tuple(tuple(_cell(value) for value in row) for row in rows))


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def log_row(days: int) -> tuple[float, ...]:
    """Days, turns, seconds of a snapshot and of its digest, of merging a day, files, and disk by bytes of records."""
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place), ServedLog(Path(place))
        for name in (SEGMENTS, ERASURES):
            (folder / name).mkdir()
        records = sum(write_day(folder, FIRST + timedelta(days=day)) for day in range(days))
        _, merging = timed(lambda: merge_days(folder))
        remove_merged(folder)
        snapshot, listing = timed(log.snapshot)
        _, digest = timed(lambda: log.digest(snapshot))
        files = [path for path in folder.rglob("*.parquet")]
        disk = sum(path.stat().st_size for path in files)
        return days, days * 24 * PODS * TURNS_AN_HOUR, listing, digest, merging / days, len(files), disk / records


def write_day(folder: Path, day: date) -> int:
    """Write the tables of a day's segments as compaction does; returns the bytes that their records had as lines."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    target = folder / "turns" / day.isoformat()
    target.mkdir(parents=True)
    size = 0
    for hour in range(24):
        at = begin + timedelta(hours=hour)
        for _ in range(PODS):
            rows = []
            for number in range(TURNS_AN_HOUR):
                record = turn(uuid.uuid4().hex, conversation_id=uuid.uuid4().hex, time=at + timedelta(minutes=number))
                rows.append({**record_row(record), "end": 1000 * (number + 1)})
            size += TURNS_AN_HOUR * len(encode(record))
            name = f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}.parquet"
            content = pa.Table.from_pylist(rows, TURNS)
            pq.write_table(content, target / name, compression="zstd", write_page_checksum=True)
    return size


def ingest_row(count: int) -> tuple[float, ...]:
    """Scenarios, seconds, MiB above what the process had."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "scenarios.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(LINE.format(k=k) for k in range(count))
        source = FileSource(kind="jsonl", path=str(file))

        def read() -> None:
            ingest((source,), folder / "s.parquet", folder / "q.parquet", max_quarantined_fraction=0.0)

        began = time.perf_counter()
        peak = peak_growth_mib(read)
        return count, time.perf_counter() - began, peak


def versions_row(count: int) -> tuple[float, ...]:
    """Versions, all of them promoted once; seconds of their list and of the look-up of the champion."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["GRPO_HOME"] = place
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{place}/mlflow.db"
        registry = Registry(os.environ["MLFLOW_TRACKING_URI"])
        for number in range(count):
            version = put_version(registry, "desk", f"c{number}", against=f"c{number - 1}")
            put_into_service(registry, "desk", version)
        _, listing = timed(lambda: list_versions(registry, "desk"))
        champion, looking = timed(lambda: registry.champion("desk"))
        assert champion is not None
        return count, listing, looking


def timed(act: Callable[[], R]) -> tuple[R, float]:
    """Result and seconds of a call."""
    began = time.perf_counter()
    result = act()
    return result, time.perf_counter() - began
