from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from grpo.errors import ConfigError, DataError, StorageError
from grpo.log.compaction import ErasedRecords, compact, erase_records, expire
from grpo.log.folder import ERASURES, SEGMENTS, Problem, ServedLog
from grpo.log.join import join
from grpo.log.lines import encode
from grpo.log.records import Record
from grpo.log.salt import read_salt
from grpo.log.segments import Segment, make_folder
from grpo.log.tables import FEEDBACK, TURNS
from grpo.log.writer import ServingLog
from grpo.tables import SCHEMA
from tests.grpo.log.fixtures import NOON, feedback, turn
from tests.grpo.log.test_writer import environment


def write(folder: Path, *records: Record) -> None:
    """Write one closed segment, as a server does: a `ServingLog` would begin to compact the segments that are there."""
    for name in (SEGMENTS, ERASURES):
        make_folder(folder / name)
    read_salt(folder)
    segment = Segment(folder, os.fdatasync)
    for record in records:
        segment.write(encode(record))
    segment.close()


def read(folder: Path, snapshot: tuple[str, ...] | None = None) -> list[Record]:
    return [item for item in ServedLog(folder).read(snapshot) if not isinstance(item, Problem)]


def problems(folder: Path) -> list[str]:
    return [item.problem for item in ServedLog(folder).read() if isinstance(item, Problem)]


def test_compacted_records_are_the_same(tmp_path: Path):
    """Turns and feedback of two days, from one segment; the segment is gone, and a second compaction finds nothing."""
    records = [turn("a"), replace(turn("b", "a"), time=NOON + timedelta(days=1)), feedback("f", rating=1.0)]
    write(tmp_path, *records)
    assert compact(tmp_path) == 1
    assert ServedLog(tmp_path).segments() == {}
    assert sorted(table.path.parent.name for table in ServedLog(tmp_path).tables()) == [
        "2026-11-20",
        "2026-11-20",
        "2026-11-21",
    ]
    assert read(tmp_path) == records
    assert compact(tmp_path) == 0


def test_the_tables_have_the_column_types_of_rollouts(tmp_path: Path):
    """A reader of rollouts knows the columns."""
    write(tmp_path, turn("a"))
    compact(tmp_path)
    [path] = [table.path for table in ServedLog(tmp_path).tables()]
    schema = pq.read_schema(path)
    names = ["turns", "token_ids", "loss_mask", "sampler_logprobs", "seed", "temperature", "policy_hash"]
    assert [schema.field(name).type for name in names] == [SCHEMA.field(name).type for name in names]


def test_a_segment_that_is_written_is_left_alone(tmp_path: Path):
    """Its writer holds its lock."""

    async def main() -> None:
        async with ServingLog(tmp_path) as log:
            await log.append(turn("a"))
            assert compact(tmp_path) == 0
            await log.append(turn("b"))

    asyncio.run(main())
    assert read(tmp_path) == [turn("a"), turn("b")]


def test_damaged_lines_are_counted_with_their_place_and_without_their_bytes(tmp_path: Path):
    """The second of three lines, and a torn last one; their reasons are the same after compaction."""
    write(tmp_path, feedback("a"), feedback("b", comment="private"), feedback("c"))
    [path] = ServedLog(tmp_path).segments().values()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"private", b"privatE") + lines[2] + lines[1][:30])
    size = len(lines[1]) - 1
    damage = f"damaged record: the checksum differs, line 2, {size} bytes"
    assert problems(tmp_path) == [damage]
    compact(tmp_path)
    assert problems(tmp_path) == [damage, "torn record: it was not acknowledged, line 4, 30 bytes"]
    assert [record.id for record in read(tmp_path)] == ["a", "c"]
    assert not any(b"privat" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("kept", [(), ("turns",), ("feedback",), ("turns", "feedback")])
def test_a_compaction_that_was_killed_is_done_again(tmp_path: Path, kept: tuple[str, ...]):
    """The segment is still there, and some of its tables: they are not read, and written again."""
    write(tmp_path, turn("a"), feedback("f"))
    shutil.copytree(tmp_path / "segments", tmp_path / "before")
    compact(tmp_path)
    shutil.rmtree(tmp_path / "segments")
    (tmp_path / "before").rename(tmp_path / "segments")
    for path in [table.path for table in ServedLog(tmp_path).tables()]:
        if path.parents[1].name in kept:
            path.write_bytes(b"unfinished")
            path.with_name(".3f").write_bytes(b"unfinished")
        else:
            path.unlink()
    assert read(tmp_path) == [turn("a"), feedback("f")]
    assert compact(tmp_path) == 1
    assert read(tmp_path) == [turn("a"), feedback("f")]
    assert not list(tmp_path.rglob("*/.*"))


def test_a_full_disk_keeps_the_segment(tmp_path: Path):
    """The table cannot be written; the records stay where they are."""
    write(tmp_path, *(feedback(f"f{k}", comment=os.urandom(500).hex()) for k in range(20)))
    code = (
        "import resource, signal, sys; from pathlib import Path; from grpo.log.compaction import compact\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))\n"
        "compact(Path(sys.argv[1]))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, env=environment())
    assert result.returncode == 1
    assert b"File too large" in result.stderr
    assert len(read(tmp_path)) == 20
    assert not list(tmp_path.rglob("*/.*"))
    assert compact(tmp_path) == 1


def test_retention_deletes_days(tmp_path: Path):
    """On the 25th a retention of 4 days keeps the 21st and deletes the 20th."""
    write(tmp_path, turn("a"), replace(turn("b"), time=NOON + timedelta(days=1)), feedback("f"))
    compact(tmp_path)
    assert expire(tmp_path, 4, today=(NOON + timedelta(days=5)).date()) == 1
    assert [record.id for record in read(tmp_path)] == ["b"]
    with pytest.raises(ConfigError, match="retention_days 0 would keep no turn"):
        expire(tmp_path, 0)


def counted(erased: ErasedRecords | None) -> int:
    assert erased is not None
    return erased.turns + erased.feedback


def of_two_users() -> list[Record]:
    """Anna's two conversations, the second with a turn that does not name her, and Bert's."""
    return [
        replace(turn("a"), user="anna", conversation_id="opening"),
        replace(turn("b"), user="anna", conversation_id="second"),
        replace(turn("c", "b"), conversation_id="second"),
        replace(turn("d"), user="bert", conversation_id="third"),
        feedback("f", conversation_id="second", comment="I am Anna"),
        feedback("g", conversation_id="third", comment="I am Bert"),
    ]


def traces(folder: Path, *words: str) -> list[str]:
    """Files that have a word in their name, bytes or table."""
    hits = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.name + path.read_bytes().decode(errors="replace")
        if path.suffix == ".parquet":
            text += str(pq.read_table(path).to_pylist())
        hits += [path.name for word in words if word in text]
    return hits


@pytest.mark.parametrize("compacted", [False, True])
def test_the_erasure_of_a_user_removes_every_trace(tmp_path: Path, compacted: bool):
    """From tables and segments: all turns of the user's conversations and the feedback on them; others stay."""
    write(tmp_path, *of_two_users())
    if compacted:
        compact(tmp_path)
    assert counted(erase_records(tmp_path, user="anna")) == 4
    assert [record.id for record in read(tmp_path)] == ["d", "g"]
    assert traces(tmp_path, "anna", "Anna", "opening", "second", "Question a", "Question c") == []
    assert traces(tmp_path, "bert") != []


def test_the_erasure_of_a_conversation_leaves_the_others_of_the_user(tmp_path: Path):
    """Anna's second conversation, with its feedback."""
    write(tmp_path, *of_two_users())
    assert counted(erase_records(tmp_path, conversation_id="second")) == 3
    assert [record.id for record in read(tmp_path)] == ["a", "d", "g"]
    assert traces(tmp_path, "second") == []


def test_a_turn_that_was_in_progress_during_the_erasure_is_not_read(tmp_path: Path):
    """It was received before and is written later; a conversation that begins afterwards is a new one."""
    write(tmp_path, *of_two_users())
    erase_records(tmp_path, user="anna")
    late = replace(turn("e", "a"), user="anna", conversation_id="opening")
    event = feedback("h", conversation_id="second", time=NOON)
    write(
        tmp_path, late, event, replace(turn("z"), user="anna", conversation_id="new", time=NOON + timedelta(days=9999))
    )
    assert [record.id for record in read(tmp_path)] == ["d", "g", "z"]
    compact(tmp_path)
    assert traces(tmp_path, "Question e", "second") == []
    assert [record.id for record in read(tmp_path)] == ["d", "g", "z"]


def test_an_erasure_reaches_the_segment_that_another_writer_has_open(tmp_path: Path):
    """The writer begins a new one; both logs go on."""

    async def main() -> None:
        async with ServingLog(tmp_path) as first, ServingLog(tmp_path) as second:
            for record in of_two_users():
                await first.append(record)
            assert counted(await asyncio.to_thread(erase_records, tmp_path, user="anna")) == 4
            assert traces(tmp_path, "anna", "Anna") == []
            await first.append(turn("y"))
            await second.append(turn("z"))

    asyncio.run(main())
    assert [record.id for record in read(tmp_path)] == ["d", "g", "y", "z"]


def test_an_erasure_that_a_writer_blocks_is_an_error(tmp_path: Path):
    """A process that hangs with its segment locked."""
    import fcntl

    write(tmp_path, turn("a"))
    [path] = ServedLog(tmp_path).segments().values()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(
            StorageError,
            match=f"a process still writes to segment {path}, and did not begin another segment within 0.1 s",
        ):
            erase_records(tmp_path, conversation_id="c", wait_s=0.1)
    assert counted(erase_records(tmp_path, conversation_id="c")) == 1


def test_a_table_that_cannot_be_read_is_not_reported_as_erased(tmp_path: Path):
    """The operator has to delete it."""
    write(tmp_path, turn("a"))
    compact(tmp_path)
    [path] = [table.path for table in ServedLog(tmp_path).tables()]
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        erase_records(tmp_path, conversation_id="c")


@pytest.mark.parametrize("names", [{}, {"user": ""}, {"user": "a", "conversation_id": "b"}])
def test_an_erasure_names_a_user_or_a_conversation(tmp_path: Path, names: dict[str, Any]):
    """The empty name stands for clients that name no user."""
    with pytest.raises(ConfigError, match="name either a user or a conversation"):
        erase_records(tmp_path, **names)


def test_a_snapshot_reads_the_same_before_and_after_compaction(tmp_path: Path):
    """Two turns, one in Parquet; later records are of the next retraining, in the same segment and in others."""

    async def main() -> tuple[str, ...]:
        async with ServingLog(tmp_path) as log:
            await log.append(turn("b"))
            snapshot = ServedLog(tmp_path).snapshot()
            await log.append(turn("c"))
        return snapshot

    write(tmp_path, turn("a"))
    compact(tmp_path)
    log = ServedLog(tmp_path)
    snapshot = asyncio.run(main())
    write(tmp_path, turn("d"))
    digest = log.digest(snapshot)
    assert [name.partition(":")[2] != "" for name in snapshot] == [False, True]
    for _ in range(2):
        assert read(tmp_path, snapshot) == [turn("a"), turn("b")]
        assert len(read(tmp_path)) == 4
        assert digest == log.digest(snapshot)
        compact(tmp_path)
    assert digest != log.digest(log.snapshot())
    erase_records(tmp_path, conversation_id="c")
    assert read(tmp_path, snapshot) == []


def test_a_snapshot_whose_segment_is_gone_is_an_error(tmp_path: Path):
    """Its retention has passed."""
    write(tmp_path, turn("a"))
    snapshot = ServedLog(tmp_path).snapshot()
    compact(tmp_path)
    expire(tmp_path, 1)
    with pytest.raises(DataError, match="is gone, because it passed its retention"):
        read(tmp_path, snapshot)


def test_a_damaged_table_is_one_problem_and_the_others_are_read(tmp_path: Path):
    """One without its end, one of another version, one with a status that does not exist."""
    for name in "abcd":
        write(tmp_path, turn(name))
        compact(tmp_path)
    first, second, third, _ = (table.path for table in ServedLog(tmp_path).tables())
    first.write_bytes(first.read_bytes()[:-30])
    pq.write_table(pq.read_table(second).replace_schema_metadata({b"served_log_version": b"9"}), second)
    rows = pq.read_table(third).to_pylist()
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist([{**rows[0], "status": "asleep"}], TURNS), third)
    assert read(tmp_path) == [turn("d")]
    faults = problems(tmp_path)
    damaged = next(item for item in ServedLog(tmp_path).read() if isinstance(item, Problem))
    assert (damaged.place, damaged.line) == (first.relative_to(tmp_path).as_posix(), 1)
    assert faults[0].startswith(f"damaged file: {first} is not a readable Parquet file")
    assert faults[1].startswith(f"damaged file: {second} has serving log version 9, but this release reads 2")
    assert faults[2].startswith("not a record: turn c: status 'asleep' is unknown")
    assert join(ServedLog(tmp_path).read()).counts.damaged == 3


def test_the_schemas_have_every_field_of_the_records():
    """A field that is added to a record has to be stored."""
    from dataclasses import fields

    assert [*TURNS.names] == [*(item.name for item in fields(turn("a"))), "end"]
    assert [*FEEDBACK.names] == [*(item.name for item in fields(feedback("f"))), "end"]


def test_a_log_on_nfs_is_compacted_and_erased_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """NFS refuses an exclusive lock on a file that is open for reading only, and keeps the lock of a folder local."""
    lock = fcntl.flock

    def as_nfs_does(descriptor: int, operation: int) -> None:
        assert stat.S_ISREG(os.fstat(descriptor).st_mode), "the lock of a folder would exclude one machine only"
        if operation & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs_does)
    write(tmp_path, turn("a"), turn("b", "a"))
    assert compact(tmp_path) == 1
    assert erase_records(tmp_path, conversation_id="c").turns
