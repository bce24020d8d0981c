from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import TokenTranscript
from grpo.errors import DataError, StorageError
from grpo.log.compaction import compact
from grpo.log.folder import Problem, ServedLog
from grpo.log.join import join
from grpo.log.records import Record, ServedTurn
from grpo.log.segments import Segment
from grpo.log.writer import ServingLog
from grpo.messages import Message
from grpo.policy.policy import Sampling
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.serving.erasure import erase
from tests.grpo.agents.fixtures import make_agent
from tests.grpo.log.fixtures import feedback, turn
from tests.places import ROOT


class PoliteOnce(MultiTurnAgent):
    """Overrides its second reply."""

    async def process_turn(self, history: Any, user_input: str, context: Any = None) -> str:
        text = await super().process_turn(history, user_input, context)
        return "Good morning." if user_input == "my order b" else text


KILLS = int(os.environ.get("GRPO_TEST_KILLS", "4"))
WRITER = Path(__file__).with_name("log_writer.py")


def records(folder: Path) -> list[Record]:
    return [item for item in ServedLog(folder).read() if not isinstance(item, Problem)]


def run(use: Callable[[ServingLog], Coroutine[Any, Any, None]], folder: Path, **settings: Any) -> None:
    async def main() -> None:
        async with ServingLog(folder, **settings) as log:
            await use(log)

    asyncio.run(main())


def test_a_record_is_on_disk_when_append_returns(tmp_path: Path):
    """Another process could read it at once."""

    async def use(log: ServingLog) -> None:
        await log.append(turn("a"))
        assert records(tmp_path) == [turn("a")]
        await log.append(feedback("f", rating=1.0))
        assert records(tmp_path) == [turn("a"), feedback("f", rating=1.0)]
        assert (log.stats().records, log.stats().syncs, log.stats().waiting) == (2, 2, 0)

    run(use, tmp_path)


def test_records_that_wait_for_a_sync_share_the_next_one(tmp_path: Path):
    """1,000 records come while the first one is synced: two syncs for all."""
    begun, may_end = threading.Event(), threading.Event()
    syncs = []

    def sync(descriptor: int) -> None:
        os.fdatasync(descriptor)
        syncs.append(descriptor)
        begun.set()
        may_end.wait(240)

    async def use(log: ServingLog) -> None:
        first = asyncio.create_task(log.append(feedback("first")))
        await asyncio.to_thread(begun.wait, 240)
        others = [asyncio.create_task(log.append(feedback(str(k)))) for k in range(1_000)]
        await asyncio.sleep(0)
        assert log.stats().waiting == 1_001
        assert not first.done()
        may_end.set()
        await asyncio.gather(first, *others)
        assert len(syncs) == log.stats().syncs == 2

    run(use, tmp_path, sync=sync)
    assert len(records(tmp_path)) == 1_001


def test_a_turn_is_not_acknowledged_while_the_disk_is_full(tmp_path: Path):
    """The error names the remedy; the record is not in the log; with room again the next one is."""
    full = True

    def sync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.fdatasync(descriptor)

    async def use(log: ServingLog) -> None:
        nonlocal full
        with pytest.raises(StorageError, match=r"cannot write .*: the disk is full"):
            await log.append(feedback("lost"))
        assert (log.stats().refused, log.stats().waiting) == (1, 0)
        full = False
        await log.append(feedback("kept"))

    run(use, tmp_path, sync=sync)
    assert records(tmp_path) == [feedback("kept")]


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from stat import S_ISDIR
from grpo.errors import StorageError
from grpo.log.writer import ServingLog
from tests.grpo.log.fixtures import feedback

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    kept = []
    async with ServingLog(Path(sys.argv[1])) as log:
        for k in range(20):
            try:
                await log.append(feedback(f"f{k}", comment="x" * 60 * k))
                kept.append(f"f{k}")
            except StorageError as error:
                last = error
    print(*kept)
    print(last)

asyncio.run(main())
"""


def test_a_record_that_fits_in_part_leaves_no_part(tmp_path: Path):
    """Files may have 1,000 bytes: what was written of a record is cut off, and the next one begins a new segment."""
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, env=environment()
    )
    kept, error = result.stdout.splitlines()
    assert [record.id for record in records(tmp_path)] == kept.split()
    assert 5 < len(kept.split()) < 20
    assert "larger than a file of this process may be" in error
    for path in ServedLog(tmp_path).segments().values():
        assert path.read_bytes().endswith(b"\n") or not path.read_bytes()


def test_a_closed_log_refuses(tmp_path: Path):
    """A turn that ends after the shutdown is not lost silently."""

    async def main() -> None:
        async with ServingLog(tmp_path) as log:
            pass
        with pytest.raises(StorageError, match=r"is closed\. Record a was not written"):
            await log.append(turn("a"))

    asyncio.run(main())


def test_what_was_given_before_the_end_is_written(tmp_path: Path):
    """The server stops while 100 turns wait for the disk."""

    async def main() -> None:
        async with ServingLog(tmp_path) as log:
            waiting = [asyncio.create_task(log.append(feedback(str(k)))) for k in range(100)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)

    asyncio.run(main())
    assert len(records(tmp_path)) == 100


def test_a_record_that_is_not_json_does_not_reach_the_file(tmp_path: Path):
    """The error is the caller's."""

    async def use(log: ServingLog) -> None:
        with pytest.raises(DataError, match="record f"):
            await log.append(feedback("f", comment="\ud800"))
        await log.append(feedback("g"))

    run(use, tmp_path)
    assert records(tmp_path) == [feedback("g")]


def test_a_segment_ends_by_its_size_and_is_compacted_while_others_are_written(tmp_path: Path):
    """40 records of 300 bytes in segments of 1,000; all are read, once, before and after."""

    async def use(log: ServingLog) -> None:
        for k in range(40):
            await log.append(feedback(f"{k:02}"))
        await until(lambda: len(ServedLog(tmp_path).segments()) <= 1)
        assert len(list(tmp_path.glob("feedback/*/*.parquet"))) > 5
        assert log.stats().compaction_error is None

    run(use, tmp_path, segment_bytes=1_000)
    assert sorted(record.id for record in records(tmp_path)) == [f"{k:02}" for k in range(40)]


def test_a_segment_ends_by_its_age(tmp_path: Path):
    """Also when nothing is written any more."""

    async def use(log: ServingLog) -> None:
        await log.append(feedback("f"))
        await until(lambda: not ServedLog(tmp_path).segments())

    run(use, tmp_path, segment_s=0.05)
    assert records(tmp_path) == [feedback("f")]


def test_a_failed_compaction_is_reported_and_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A file stands where the folder of turns should be. The log line and the statistics have the error."""
    (tmp_path / "turns").touch()
    errors = []

    async def use(log: ServingLog) -> None:
        await log.append(turn("a"))
        await until(lambda: log.stats().compaction_error is not None)
        errors.append(log.stats().compaction_error)
        await log.append(turn("b"))

    run(use, tmp_path, segment_bytes=1)
    assert str(tmp_path / "turns") in errors[0]
    [line] = [line for line in caplog.messages if line.startswith("the serving log is not compacted")]
    assert line.endswith(errors[0])
    (tmp_path / "turns").unlink()
    assert records(tmp_path) == [turn("a"), turn("b")]


def test_any_exception_of_a_write_refuses_its_turns_and_the_next_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """If the writer's thread ended, this turn and all later ones would wait for ever."""
    written, broken = Segment.write, iter([True])

    def fail_once(segment: Segment, content: bytes) -> None:
        if next(broken, False):
            raise ValueError("not a disk")
        written(segment, content)

    monkeypatch.setattr(Segment, "write", fail_once)

    async def use(log: ServingLog) -> None:
        with pytest.raises(StorageError, match=r"cannot write the serving log .*: ValueError: not a disk"):
            await asyncio.wait_for(log.append(turn("a")), 240)
        await asyncio.wait_for(log.append(turn("b")), 240)
        assert (log.stats().refused, log.stats().records) == (1, 1)

    run(use, tmp_path)
    assert records(tmp_path) == [turn("b")]


def test_an_error_at_the_end_of_a_segment_refuses_no_later_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A network disk reports a failed write again when the file is closed. All later turns would wait for ever."""
    close, failing = os.close, set[int]()

    def close_with_error(descriptor: int) -> None:
        close(descriptor)
        if descriptor in failing:
            failing.remove(descriptor)
            raise OSError(errno.EIO, "Input/output error")

    def sync(descriptor: int) -> None:
        if next(broken, False):
            failing.add(descriptor)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("grpo.log.segments.os.close", close_with_error)
    broken = iter([True])

    async def use(log: ServingLog) -> None:
        with pytest.raises(StorageError, match="Input/output error"):
            await asyncio.wait_for(log.append(turn("a")), 240)
        await asyncio.wait_for(log.append(turn("b")), 240)

    run(use, tmp_path, sync=sync)
    assert records(tmp_path) == [turn("b")]


def test_days_are_deleted_while_the_compaction_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Full disk, or a file where a folder should be as here: the retention makes room and keeps its promise."""
    (tmp_path / "feedback").touch()
    old = tmp_path / "turns" / "2020-01-01"
    old.mkdir(parents=True)

    async def use(log: ServingLog) -> None:
        for name in ("a", "b"):
            await log.append(feedback(name))
        await until(lambda: log.stats().compaction_error is not None and not old.exists())

    run(use, tmp_path, segment_bytes=1, retention_days=5)
    assert len([line for line in caplog.messages if "the serving log is not compacted" in line]) == 1


def test_any_exception_of_a_compaction_is_reported_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """For example an error of pyarrow that is not an `OSError`."""
    broken = iter([True])

    def fail_once(folder: Path) -> None:
        if next(broken, False):
            raise pa.ArrowInvalid("not a Parquet file")
        compact(folder)

    monkeypatch.setattr("grpo.log.writer.compact", fail_once)

    async def use(log: ServingLog) -> None:
        await log.append(turn("a"))
        await until(lambda: log.stats().compaction_error is not None)
        assert "not a Parquet file" in str(log.stats().compaction_error)
        await log.append(turn("b"))
        await until(lambda: log.stats().compaction_error is None)

    run(use, tmp_path, segment_bytes=1)
    assert records(tmp_path) == [turn("a"), turn("b")]


def test_days_before_the_retention_are_deleted(tmp_path: Path):
    """A retention of 5 days, records of the last ten days at noon: those of today and the 5 days before stay."""
    noon = datetime.now(UTC).replace(hour=0, minute=0, second=0)

    async def use(log: ServingLog) -> None:
        for k in range(10):
            await log.append(replace(turn("a"), id=str(k), time=noon - timedelta(days=k)))
        await until(
            lambda: (
                not ServedLog(tmp_path).segments() and not list(tmp_path.glob(f"turns/{noon.date() - timedelta(6)}"))
            )
        )

    run(use, tmp_path, segment_bytes=1, retention_days=5)
    left = sorted(record.id for record in records(tmp_path))
    has_ended = datetime.now(UTC).date() != noon.date()
    assert left == list("012345") or (has_ended and left == list("01234"))


def test_files_are_readable_by_their_owner_alone(tmp_path: Path):
    """Segments, tables and erasures, whatever the umask is."""
    (tmp_path / "home").mkdir()
    folder, before = tmp_path / "new" / "log", os.umask(0)
    modes: dict[str, set[int]] = {}

    def look() -> None:
        for path in (folder, *folder.rglob("*")):
            with suppress(FileNotFoundError):  # compacted meanwhile
                mode = path.stat().st_mode
                modes.setdefault("folder" if S_ISDIR(mode) else path.suffix, set()).add(mode & 0o777)

    async def use(log: ServingLog) -> None:
        await log.append(turn("a"))
        await asyncio.to_thread(erase, folder, conversation_id="c", home=tmp_path / "home")
        await log.append(turn("b", conversation_id="d"))
        look()  # the segment that is written; when it is closed, it may be a table at once

    try:
        run(use, folder)
        look()
    finally:
        os.umask(before)
    suffixes = (".log", ".parquet", ".json", "")  # the last is the salt's
    assert modes == {"folder": {0o700}, **{suffix: {0o600} for suffix in suffixes}}


def test_a_user_has_one_hash_in_a_folder_and_another_one_elsewhere(tmp_path: Path):
    async def hashes(folder: Path) -> list[str]:
        async with ServingLog(folder) as first, ServingLog(folder) as second:
            await first.append(turn("a"))
            return [log.user_hash(name) for log in (first, second) for name in ("anna", "bert")]

    anna, bert, *again = asyncio.run(hashes(tmp_path / "here"))
    assert again == [anna, bert]
    assert anna != bert
    assert asyncio.run(hashes(tmp_path / "here"))[0] == anna
    assert asyncio.run(hashes(tmp_path / "there"))[0] != anna


@pytest.mark.parametrize("damage", [None, b"short"])
def test_a_log_without_its_salt_is_not_opened(tmp_path: Path, damage: bytes | None):
    """A new salt would give users other hashes, by which an erasure misses their turns."""

    async def use() -> None:
        async with ServingLog(tmp_path) as log:
            await log.append(turn("a"))

    asyncio.run(use())
    (tmp_path / "salt").unlink()
    if damage is not None:
        (tmp_path / "salt").write_bytes(damage)
    with pytest.raises(StorageError, match=r"Restore (it|the file)"):
        asyncio.run(use())


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; a log that never meets it fails the test by its time limit."""
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def begin(folder: Path, ledger: Path, *, conversations: int, count: int) -> subprocess.Popen[bytes]:
    arguments = [folder, ledger, conversations, count]
    return subprocess.Popen([sys.executable, str(WRITER), *map(str, arguments)], env=environment())


def acknowledged(ledger: Path) -> list[str]:
    return (
        [line for line in ledger.read_text(encoding="utf-8").splitlines() if line != "begun"] if ledger.exists() else []
    )


def test_two_processes_write_to_one_folder(tmp_path: Path):
    """Each of 2 · 4 · 50 turns once, while both compact the segments of both."""
    folder, ledgers = tmp_path / "log", [tmp_path / "one", tmp_path / "two"]
    processes = [begin(folder, ledger, conversations=4, count=50) for ledger in ledgers]
    assert [process.wait() for process in processes] == [0, 0]
    written = sorted(record.id for record in records(folder))
    assert written == sorted(name for ledger in ledgers for name in acknowledged(ledger))
    assert len(set(written)) == 400


def test_no_acknowledged_turn_is_lost_or_doubled_by_kills(tmp_path: Path):
    """SIGKILL at random points of 8 conversations with compaction; a restart goes on with the last turn of each."""
    folder, ledger, rng = tmp_path / "log", tmp_path / "ledger", random.Random(0)
    for number in range(KILLS):
        begun = ledger.read_text().count("begun") if ledger.exists() else 0
        process = begin(folder, ledger, conversations=8, count=10**9)
        while not ledger.exists() or ledger.read_text().count("begun") == begun:
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0.5, 2.5) if number % 4 == 0 else rng.uniform(0, 0.2))  # compaction begins slowly
        process.kill()
        process.wait()
        names = Counter(record.id for record in records(folder))
        assert not set(acknowledged(ledger)) - names.keys()
        assert set(names.values()) == {1}
    compact(folder)  # a slow machine may have done none before the kills
    assert list(folder.glob("turns/*/*.parquet"))
    joined = join(ServedLog(folder).read())
    assert joined.counts.duplicate_turns == 0
    assert joined.counts.unjoined == {}
    assert joined.counts.conversations == 8
    assert joined.counts.forks == 0
    for conversation in joined.conversations:
        numbers = [int(item.id.rpartition("-")[2]) for item in conversation.turns]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(acknowledged(ledger)) > 10 * KILLS
    assert all(isinstance(record, ServedTurn) for record in records(folder))


def added(transcript: TokenTranscript, before: tuple[int, int], name: str, parent: str | None) -> ServedTurn:
    """The turn that a transcript got after these numbers of tokens and messages."""
    tokens, messages = before
    return replace(
        turn(name),
        parent=parent,
        renderer_hash=transcript.renderer.hash,
        turns=tuple(transcript.turns[messages:]),
        token_ids=np.asarray(transcript.ids[tokens:], np.int32),
        loss_mask=np.asarray(transcript.mask[tokens:], np.bool_),
        sampler_logprobs=np.asarray(transcript.logprobs[tokens:], np.float32),
    )


_ARRAYS = ("loss_mask", "sampler_logprobs")


@pytest.mark.parametrize("kind", [MultiTurnAgent, PoliteOnce])
def test_three_turns_have_the_tokens_of_the_transcript(tmp_path: Path, tiny_folder: Path, kind: type[MultiTurnAgent]):
    """Tokens, spans, mask and log-probabilities, from the segment and from Parquet; one agent overrides a reply."""
    policy = load(tiny_folder)
    renderer, agent = Renderer(policy.tokenizer), make_agent(policy, kind)
    sampling = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=9, seed=5)

    async def use(log: ServingLog) -> None:
        nonlocal transcript
        async with policy.sampler(concurrency=1, renderer=renderer) as sampler:
            session = sampler.open()
            transcript = TokenTranscript(session, renderer, sampling, max_context=2_000)
            opening = (Message(role="system", content="You help."),)
            for name, parent in (("a", None), ("b", "a"), ("c", "b")):
                before = len(transcript.ids), len(transcript.turns)
                await agent.respond(transcript, (*opening, Message(role="user", content=f"my order {name}")))
                opening = ()
                await log.append(added(transcript, before, name, parent))
            session.close()

    transcript: TokenTranscript
    run(use, tmp_path)
    for _ in range(2):
        [conversation] = join(ServedLog(tmp_path).read()).conversations
        turns = conversation.turns
        mask, logprobs = (np.concatenate([getattr(turn, name) for turn in turns]) for name in _ARRAYS)
        assert [part for turn in turns for part in turn.turns] == list(transcript.turns)
        assert np.concatenate([turn.token_ids for turn in turns]).tolist() == transcript.ids
        assert mask.tolist() == transcript.mask
        assert logprobs.tobytes() == np.asarray(transcript.logprobs, np.float32).tobytes()
        assert {turn.renderer_hash for turn in turns} == {renderer.hash}
        assert mask.any()
        compact(tmp_path)
    overridden = [
        not mask[part.start : part.stop].any()
        for turn in turns
        for part in turn.turns
        if part.message.role == "assistant" and part.stop > part.start
    ]
    assert sum(overridden) == (1 if kind is PoliteOnce else 0)
