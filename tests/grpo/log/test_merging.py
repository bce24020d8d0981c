"""Merging of the days of a serving log, and its readers before, during and after."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from time import time

import pyarrow.parquet as pq
import pytest

from grpo.log import segments
from grpo.log.compaction import compact, erase_records, expire
from grpo.log.folder import Problem, ServedLog
from grpo.log.follower import FULLY_READ, LogReader
from grpo.log.log_tables import find_tables
from grpo.log.merging import merge_days, remove_merged
from grpo.log.records import Record
from tests.grpo.log.fixtures import NOON, feedback, turn
from tests.grpo.log.test_compaction import problems, read, write
from tests.grpo.log.test_follower import take

LATER = NOON.date() + timedelta(days=5)


class Clock(segments.datetime):
    """Clock of the names of segments, which begin at noon and a second later each."""

    count = 0
    day = timedelta(0)

    @classmethod
    def now(cls, tz=None):
        cls.count += 1
        return NOON + cls.day + timedelta(seconds=cls.count)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments begin on the day of their records."""
    monkeypatch.setattr(segments, "datetime", Clock)


def three_segments(folder: Path) -> list[Record]:
    """Turns of two days and feedback in three segments of one day, and damage in the last."""
    records: list[Record] = [turn("a"), turn("b", "a", time=NOON + timedelta(days=1)), feedback("f", rating=1.0)]
    write(folder, records[0], records[2])
    write(folder, records[1])
    write(folder, turn("c", conversation_id="other"))
    path = list(ServedLog(folder).segments().values())[-1]
    with path.open("ab") as file:
        file.write(b"damage\n")
    compact(folder)
    return [*records, turn("c", conversation_id="other")]


def ids(records: list[Record]) -> list[str]:
    return sorted(record.id for record in records)


def names(folder: Path) -> list[str]:
    """Kind and day of each file that is read, and its name up to the hash."""
    return [f"{table.kind}/{table.path.parent.name}/{table.name[:15]}" for table in ServedLog(folder).tables()]


def test_a_day_that_is_over_becomes_one_file_a_kind_and_day(tmp_path: Path):
    """Three segments in five files become four files, with the same records and damage."""
    records = three_segments(tmp_path)
    damage = problems(tmp_path)
    assert len(names(tmp_path)) == 5
    assert merge_days(tmp_path, today=LATER) == 1
    assert names(tmp_path) == [
        "turns/2026-11-20/merged-20261120",
        "turns/2026-11-21/merged-20261120",
        "feedback/2026-11-20/merged-20261120",
        "damaged/2026-11-20/merged-20261120",
    ]
    assert sorted(read(tmp_path), key=lambda record: record.id) == sorted(records, key=lambda record: record.id)
    assert problems(tmp_path) == damage
    assert merge_days(tmp_path, today=LATER) == 0
    assert [turn.id for turn in ServedLog(tmp_path).turns_of({"c"})] == ["a", "b"]
    assert not list(tmp_path.rglob("*/.*"))


def test_the_name_of_a_merged_file_has_the_digest_of_the_names_of_its_parts(tmp_path: Path):
    """Two machines that merge different tables of one day do not write to one file."""
    for folder in (tmp_path / "north", tmp_path / "south"):
        three_segments(folder)
        merge_days(folder, today=LATER)
    north, south = ({table.name for table in ServedLog(tmp_path / name).tables()} for name in ("north", "south"))
    assert north.isdisjoint(south)


def test_a_table_that_is_gone_keeps_its_path(tmp_path: Path):
    """Reading it then names the missing file."""
    write(tmp_path, turn("a"))
    compact(tmp_path)
    log = ServedLog(tmp_path)
    [table] = log.tables()
    table.path.unlink()
    assert log.present(table) == table.path


def test_yesterday_and_a_day_that_is_still_written_are_left(tmp_path: Path):
    """A segment that began then may get further records; one segment alone is one file already."""
    three_segments(tmp_path)
    assert merge_days(tmp_path, today=NOON.date() + timedelta(days=1)) == 0
    write(tmp_path, turn("d"))
    assert merge_days(tmp_path, today=LATER) == 0
    compact(tmp_path)
    assert merge_days(tmp_path, today=LATER) == 1
    write(tmp_path, turn("late"))
    compact(tmp_path)
    assert merge_days(tmp_path, today=LATER) == 0
    assert ids(read(tmp_path)) == ["a", "b", "c", "d", "f", "late"]


@pytest.mark.parametrize("days", [2, 6])
def test_the_tables_of_all_days_are_listed_once(days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A backlog of a year has 87,600 tables, and each of its days has only a few hundred of them."""
    for day in range(days):
        monkeypatch.setattr(Clock, "day", timedelta(days=day))
        for name in ("a", "b"):
            write(tmp_path, turn(f"{name}{day}", time=NOON + timedelta(days=day)))
    compact(tmp_path)
    listings, tables = [], ServedLog.tables
    monkeypatch.setattr(ServedLog, "tables", lambda log: listings.append(log) or tables(log))
    assert merge_days(tmp_path, today=LATER + timedelta(days=days)) == days
    assert len(listings) == 1
    assert ids(read(tmp_path)) == sorted(f"{name}{day}" for name in ("a", "b") for day in range(days))


def test_a_snapshot_reads_the_same_before_and_after_merging(tmp_path: Path):
    """One that names two compacted segments and one that was growing; its digest is the same as well."""
    write(tmp_path, turn("a"), feedback("f"))
    write(tmp_path, turn("b", "a"))
    compact(tmp_path)
    write(tmp_path, turn("c", "b"))
    log = ServedLog(tmp_path)
    snapshot = log.snapshot()
    write(tmp_path, turn("d", "c"))
    before = (ids(read(tmp_path, snapshot)), log.digest(snapshot))
    assert before[0] == ["a", "b", "c", "f"]
    compact(tmp_path)
    merge_days(tmp_path, today=LATER)
    assert (ids(read(tmp_path, snapshot)), log.digest(snapshot)) == before
    assert len(log.snapshot()) == 1
    assert ids(read(tmp_path, log.snapshot())) == ["a", "b", "c", "d", "f"]
    assert log.digest(log.snapshot()) != before[1]


def test_the_digest_of_a_merged_table_has_its_content(tmp_path: Path):
    """One that was written again with other rows has another digest, without an erasure."""
    three_segments(tmp_path)
    merge_days(tmp_path, today=LATER)
    log = ServedLog(tmp_path)
    snapshot = log.snapshot()
    digest = log.digest(snapshot)
    path = log.tables()[0].path
    content = pq.read_table(path)
    pq.write_table(content.slice(0, 1), path)
    assert log.digest(snapshot) != digest


@pytest.mark.parametrize("renamed", range(5))
def test_a_merge_that_was_killed_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int
):
    """After each number of files that took their places; the next merge goes on."""
    three_segments(tmp_path)
    replaced = Path.replace

    def die(self: Path, target: Path) -> Path:
        nonlocal renamed
        renamed -= 1
        if renamed < 0:
            raise KeyboardInterrupt
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", die)
    try:
        merge_days(tmp_path, today=LATER)
    except KeyboardInterrupt:
        monkeypatch.setattr(Path, "replace", replaced)
    log = ServedLog(tmp_path)
    snapshot = log.snapshot()
    for _ in range(2):
        assert ids(read(tmp_path)) == ids(read(tmp_path, snapshot)) == ["a", "b", "c", "f"]
        assert len(problems(tmp_path)) == 1
        merge_days(tmp_path, today=LATER)
        remove_merged(tmp_path)


def test_merged_files_stay_for_an_hour(tmp_path: Path):
    """A reader that has listed them reads them, or the merged file when they are gone."""
    three_segments(tmp_path)
    reader = ServedLog(tmp_path).read()
    first = next(reader)
    merge_days(tmp_path, today=LATER)
    assert len(find_tables(tmp_path)) == 9
    for table in find_tables(tmp_path):
        os.utime(table.path, (time() - 3700, time() - 3700))
    merge_days(tmp_path, today=LATER)
    assert len(find_tables(tmp_path)) == 4
    rest = [item for item in [first, *reader] if not isinstance(item, Problem)]
    assert ids(rest) == ["a", "b", "c", "f"]


@pytest.mark.parametrize("damage", ["footer", "page"])
def test_a_damaged_table_keeps_its_day_as_it_is(tmp_path: Path, damage: str):
    """The others of its day are read, and the damage is named: it does not become a page with a checksum of its own."""
    three_segments(tmp_path)
    path = ServedLog(tmp_path).tables()[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-20] if damage == "footer" else flipped(path))
    assert merge_days(tmp_path, today=LATER) == 0
    assert ids(read(tmp_path)) == ["b", "c", "f"]
    assert len(problems(tmp_path)) == 2
    assert not list(tmp_path.rglob("*/.*"))


def flipped(path: Path) -> bytes:
    """The file with one bit of a page turned."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    return bytes(content)


def test_a_merged_file_that_was_damaged_is_made_again_while_its_parts_are_there(tmp_path: Path):
    """They are removed only once the merged file was read; a damaged one makes room for them."""
    records = three_segments(tmp_path)
    merge_days(tmp_path, today=LATER)
    merged = [table.path for table in ServedLog(tmp_path).tables()]
    merged[0].write_bytes(flipped(merged[0]))
    remove_merged(tmp_path)
    assert not merged[0].exists()
    assert ids(read(tmp_path)) == ids(records)
    assert merge_days(tmp_path, today=LATER) == 1
    remove_merged(tmp_path)
    assert ids(read(tmp_path)) == ids(records)


def test_a_table_of_before_that_lacks_a_column_is_merged(tmp_path: Path):
    """Feedback had no scopes once."""
    write(tmp_path, feedback("f", rating=1.0))
    write(tmp_path, feedback("g", rating=0.0))
    compact(tmp_path)
    path = ServedLog(tmp_path).tables()[0].path
    pq.write_table(pq.read_table(path).drop_columns(["scopes"]), path)
    assert merge_days(tmp_path, today=LATER) == 1
    assert [record.scopes == () for record in read(tmp_path)] == [True, False]


def test_an_erasure_reaches_merged_files_and_those_that_they_were_made_of(tmp_path: Path):
    """No file has the conversation's text or id; the counts are those of the records, not of the files."""
    write(tmp_path, turn("a"), feedback("f", rating=1.0))
    write(tmp_path, turn("b", "a"), turn("c", conversation_id="other"))
    compact(tmp_path)
    merge_days(tmp_path, today=LATER)
    assert len(find_tables(tmp_path)) == 5
    erased = erase_records(tmp_path, conversation_id="c")
    assert erased is not None
    assert (erased.turns, erased.feedback) == (2, 1)
    assert len(find_tables(tmp_path)) == 2
    assert [name for table in find_tables(tmp_path) for name in pq.read_table(table.path)["id"].to_pylist()] == ["c"]
    assert ids(read(tmp_path)) == ["c"]


def test_retention_removes_merged_days(tmp_path: Path):
    """The folder of a day goes, with whatever is in it."""
    three_segments(tmp_path)
    merge_days(tmp_path, today=LATER)
    assert expire(tmp_path, 4, today=date(2026, 11, 25)) == 1
    assert names(tmp_path) == ["turns/2026-11-21/merged-20261120"]
    assert ids(read(tmp_path)) == ["b"]


@pytest.mark.parametrize("taken", range(6))
def test_a_reader_that_follows_the_log_reads_each_record_once(tmp_path: Path, taken: int):
    """It stops after each number of records; then the day is merged, and it goes on after a restart."""
    write(tmp_path, turn("a"), feedback("f"), turn("b", "a", time=NOON + timedelta(days=1)))
    write(tmp_path, turn("c", conversation_id="other"), replace(feedback("g"), conversation_id="other"))
    compact(tmp_path)
    tail = LogReader(tmp_path)
    first = take(tail, taken)
    merge_days(tmp_path, today=LATER)
    shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
    tail = LogReader(tmp_path, dict(tail.position))
    assert tail.waiting() == 5 - taken
    assert [*first, *take(tail)] == ["a", "f", "b", "c", "g"]
    assert (tail.waiting(), take(tail)) == (0, [])
    [(name, position)] = tail.position.items()
    assert (name.startswith("merged-"), position) == (True, FULLY_READ)


def test_a_merged_day_that_was_read_leaves_one_position(tmp_path: Path):
    """Not one for each of its segments."""
    three_segments(tmp_path)
    tail = LogReader(tmp_path)
    take(tail)
    assert len(tail.position) == 3
    merge_days(tmp_path, today=LATER)
    assert (tail.waiting(), take(tail), len(tail.position)) == (0, [], 1)
