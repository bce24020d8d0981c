"""A reader that follows a log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from grpo.log.compaction import compact, erase_records
from grpo.log.folder import ServedLog
from grpo.log.follower import FULLY_READ, LogReader
from grpo.log.records import Record
from tests.grpo.log.fixtures import NOON, feedback, turn
from tests.grpo.log.test_compaction import write


def take(tail: LogReader, most: int | None = None) -> list[str]:
    """Ids of the next records, after which the position is."""
    ids: list[str] = []
    for step in tail.unread():
        if len(ids) == most:
            break
        tail.advance(step)
        ids += [] if step.record is None else [step.record.id]
    return ids


def test_each_record_is_read_once_before_and_after_compaction(tmp_path: Path):
    """Feedback between two turns of two days; one record is read before the compaction, three come after it."""
    records: list[Record] = [turn("a"), feedback("f"), turn("b", "a", time=NOON + timedelta(days=1))]
    write(tmp_path, *records)
    tail = LogReader(tmp_path)
    assert (take(tail, 1), tail.waiting()) == (["a"], 2)
    compact(tmp_path)
    write(tmp_path, turn("c", "b"))
    assert tail.waiting() == 3
    assert take(tail, 1) == ["f"]
    tail = LogReader(tmp_path, dict(tail.position))  # after a restart
    assert (take(tail), tail.waiting(), take(tail)) == (["b", "c"], 0, [])
    assert sorted(tail.position.values())[0] == FULLY_READ


def test_damaged_and_erased_records_are_passed_over(tmp_path: Path):
    """A line without its checksum between two turns, and a conversation that is erased."""
    write(tmp_path, turn("a"), turn("b", conversation_id="erased"))
    (path,) = ServedLog(tmp_path).segments().values()
    with path.open("ab") as file:
        file.write(b"damage\n")
    erase_records(tmp_path, conversation_id="erased")
    write(tmp_path, turn("d"))
    tail = LogReader(tmp_path)
    assert take(tail) == ["a", "d"]
    assert (tail.waiting(), take(tail)) == (0, [])


def test_segments_that_are_gone_leave_the_position(tmp_path: Path):
    """As after their retention."""
    write(tmp_path, turn("a"))
    tail = LogReader(tmp_path, {"20200101T000000-0": FULLY_READ})
    take(tail)
    assert list(tail.position) == list(ServedLog(tmp_path).segments())


def test_turns_of_conversations_are_found_in_segments_and_tables(tmp_path: Path):
    """Those of two conversations of three, in the order of time, one of which names another in its text."""
    write(tmp_path, turn("b", "a"), turn("x", conversation_id="other"))
    compact(tmp_path)
    write(tmp_path, turn("a"), turn("y", conversation_id="third"), feedback("f"))
    log = ServedLog(tmp_path)
    assert [found.id for found in log.turns_of({"c"})] == ["a", "b"]
    assert [found.id for found in log.turns_of({"other", "c"})] == ["a", "b", "x"]
