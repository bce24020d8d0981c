"""Growth of what a year leaves: days of the serving log, scenarios, registered versions.

Each row is measured in a process of its own, on data of its size.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import FileSource, ServedSource
from grpo.log.folder import ERASURES, SEGMENTS, ServedLog
from grpo.log.lines import encode
from grpo.log.merging import merge_days, remove_merged
from grpo.log.records import ServedTurn
from grpo.log.tables import TURNS, record_row
from grpo.messages import Message
from grpo.registry import Registry
from grpo.registry.versions import list_versions
from grpo.retraining.curation import DAYS as PARTS
from grpo.retraining.curation import CurationCounts, curate_conversations
from grpo.scenarios.ingest import ingest
from grpo.trajectories import Turn
from grpo_tasks.execution.parts import StoredParts
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
WORDS = tuple(
    f"{first}{second}{third}" for first in "bdfglmnprst" for second in "aeiou" for third in ("ck", "nd", "rt", "st")
)
R = TypeVar("R")


def measure() -> Findings:
    """A table of each growth, and the bars for the largest rows."""
    log = [apart(log_row, days) for days in DAYS]
    scenarios = [apart(ingest_row, count) for count in SCENARIOS]
    versions = [apart(versions_row, count) for count in VERSIONS]
    bars = [
        Bar(measure=f"digest of {DAYS[-1]} days of the log", value=log[-1][6], at_most=5, unit="s"),
        Bar(measure="disk of the merged log ÷ its records", value=log[-1][3], at_most=1.3),
        Bar(measure=f"triggers on {DAYS[-1]} days, one of them new", value=log[-1][8], at_most=30, unit="s"),
        Bar(measure="memory of that check", value=log[-1][9], at_most=500, unit="MiB"),
        Bar(measure=f"ingest of {SCENARIOS[-1]:,} scenarios", value=scenarios[-1][1], at_most=60, unit="s"),
        Bar(measure="memory of that ingest", value=scenarios[-1][2], at_most=500, unit="MiB"),
        Bar(measure=f"list of {VERSIONS[-1]} versions", value=versions[-1][1], at_most=2, unit="s"),
        Bar(measure="look-up of the champion among them", value=versions[-1][2], at_most=2, unit="s"),
    ]
    return Findings(
        title="How the data grows",
        text=(
            f"The log is that of {PODS} servers with {TURNS_AN_HOUR} turns an hour each, a segment an hour and server, "
            "as they are compacted; then its days are merged. A conversation has 11 turns of made-up words. The digest "
            "of the log is made at each check of the triggers, and its conversations are then curated, of which the "
            "results of earlier days are kept. "
            "Scenarios are read from JSONL. Versions are in MLflow's SQLite store, each promoted once."
        ),
        tables=(
            table(bars),
            _table(
                (
                    *("days", "turns", "files", "disk ÷ records", "merge s a day", "snapshot s", "digest s"),
                    *("first curation s", "one day new s", "one day new MiB"),
                ),
                log,
            ),
            _table(("scenarios", "s", "MiB"), scenarios),
            _table(("versions", "list s", "champion s"), versions),
        ),
    )


def _table(head: tuple[str, ...], rows: list[tuple[float, ...]]) -> Table:
    return Table(head=head, rows=tuple(tuple(_cell(value) for value in row) for row in rows))


def _cell(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def log_row(days: int) -> tuple[float, ...]:
    """What a log of this many days costs, of which all but the last are merged.

    Returns days, turns, files, disk by bytes of records, and seconds of merging a day, of the snapshot, of its digest,
    of the first curation, and seconds and MiB of the curation when the last day is new.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "log"
        for name in (SEGMENTS, ERASURES):
            (folder / name).mkdir(parents=True)
        records = sum(write_day(folder, FIRST + timedelta(days=day)) for day in range(days - 1))
        _, merging = timed(lambda: merge_days(folder))
        remove_merged(folder)
        files = list(folder.rglob("*.parquet"))
        disk = sum(path.stat().st_size for path in files)

        accepted, first, _ = apart(curate, place, "first")
        assert accepted == (days - 1) * 24 * PODS, accepted
        write_day(folder, FIRST + timedelta(days=days - 1))
        log = ServedLog(folder)
        snapshot, listing = timed(log.snapshot)
        _, digest = timed(lambda: log.digest(snapshot))
        _, again, peak = apart(curate, place, "again")
        turns = days * 24 * PODS * TURNS_AN_HOUR
        return days, turns, len(files), disk / records, merging / (days - 1), listing, digest, first, again, peak


def curate(place: str, name: str) -> tuple[int, float, float]:
    """Curate the conversations of the log; returns how many were accepted, seconds, and MiB above those before."""
    log, target = Path(place) / "log", Path(place) / name
    target.mkdir()
    source = ServedSource(kind="served", path=str(log), segments=ServedLog(log).snapshot())
    settings, parts = CurationSettings(licences=("own",)), StoredParts(f"{place}/store", PARTS)
    counts: list[CurationCounts] = []

    def read() -> None:
        made = curate_conversations([source], target, known=(), heldout=(), settings=settings, parts=parts)
        counts.append(made)

    began = time.perf_counter()
    peak = peak_growth_mib(read)
    return counts[0].accepted, time.perf_counter() - began, peak


def write_day(folder: Path, day: date) -> int:
    """Write the tables of a day's segments as compaction does; returns the bytes that their records had as lines.

    In each hour each server has one conversation, with a turn every five minutes.
    """
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    random = np.random.default_rng(day.toordinal())
    target = folder / "turns" / day.isoformat()
    target.mkdir(parents=True)
    size = 0
    for hour in range(24):
        at = begin + timedelta(hours=hour)
        for _ in range(PODS):
            rows, end = [], 0
            for record in conversation(random, at):
                end += len(encode(record))
                rows.append({**record_row(record), "end": end})
            size += end
            name = f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}.parquet"
            content = pa.Table.from_pylist(rows, TURNS)
            pq.write_table(content, target / name, compression="zstd", write_page_checksum=True)
    return size


def conversation(random: np.random.Generator, begin: datetime) -> Iterator[ServedTurn]:
    """Turns of a conversation in made-up words, a token for each word, with log-probabilities of the replies."""
    name, parent, start = uuid.UUID(bytes=random.bytes(16)).hex, None, 0
    for number in range(TURNS_AN_HOUR):
        asked, replied = (random.choice(len(WORDS), size=int(size)) for size in random.integers(5, 30, 2))
        middle, stop = start + len(asked), start + len(asked) + len(replied)
        question, reply = (" ".join(WORDS[word] for word in words) for words in (asked, replied))
        made = turn(
            f"{name}{number:02d}",
            conversation_id=name,
            parent=parent,
            time=begin + timedelta(minutes=5 * number),
            turns=(
                Turn(message=Message(role="user", content=question), start=start, stop=middle),
                Turn(message=Message(role="assistant", content=reply), start=middle, stop=stop),
            ),
            token_ids=np.concatenate([asked, replied]).astype(np.int32),
            loss_mask=np.arange(start, stop) >= middle,
            sampler_logprobs=np.where(
                np.arange(start, stop) >= middle, -random.exponential(size=stop - start), np.nan
            ).astype(np.float32),
        )
        yield made
        parent, start = made.id, stop


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
