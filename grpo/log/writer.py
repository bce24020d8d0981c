"""Write-ahead log of a served policy: a record is durable before it is acknowledged.

    append ─┐                                        ┌─ acknowledged
    append ─┼→ queue → thread: one write, fdatasync ─┼─ acknowledged      segments/….log → compaction → DAY/….parquet
    append ─┘                                        └─ acknowledged

A segment ends when it is large or old enough, or when an erasure is requested. A second thread compacts closed segments
and the segments that killed processes left. Any number of processes may write to one folder, because each of them
writes to its own segment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from grpo.errors import DataError, GRPOError, StorageError
from grpo.log.compaction import compact, expire
from grpo.log.folder import ERASURES, SEGMENTS, name_digest, read_erasure
from grpo.log.ids import ServingIds
from grpo.log.lines import encode
from grpo.log.merging import merge_days
from grpo.log.records import Erasure, Record
from grpo.log.salt import hash_user, read_salt
from grpo.log.segments import Segment, make_folder
from grpo.storage.error_lines import one_line
from grpo.storage.files import storage_error, storage_errors

logger = logging.getLogger(__name__)
_IDLE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counts of this process since the log was opened."""

    records: int
    """Records that are durable."""
    refused: int
    """Records that could not be written."""
    syncs: int
    bytes: int
    waiting: int
    """Records that are not durable yet."""
    compaction_error: str | None
    """Error of the last compaction, or None if it succeeded."""


@dataclass(slots=True)
class _Waiting:
    line: bytes
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]


@dataclass(slots=True)
class _Counts:
    records: int = 0
    refused: int = 0
    syncs: int = 0
    bytes: int = 0
    submitted: int = 0
    compaction_error: str | None = None


class ServingLog:
    """Log in one folder, which several processes may write to. Its readers are in `grpo.log`.

    `async with ServingLog(folder) as log` starts the threads. When the block ends, every record that was given to
    `append` is written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        retention_days: int | None = None,
        segment_bytes: int = 32 * 2**20,
        segment_s: float = 3600.0,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.folder = folder
        self.on_erasure: Callable[[Erasure], object] = lambda erasure: None
        """Called on the event loop with each erasure, also of another process, once its document is in the folder."""
        self._known_erasures: dict[str, Erasure] = {}
        self._retention_days = retention_days
        self._segment_bytes, self._segment_s = segment_bytes, segment_s
        self._sync = sync
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._compactions: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._segment: Segment | None = None
        self._erasures = 0
        self._salt: bytes | None = None
        self._erased: set[str] = set()
        """Digests of the conversations that the known erasures name."""
        self._damaged_erasure: DataError | None = None
        self._reading_erasures = threading.Lock()
        self._counts = _Counts()
        self._open = False

    async def __aenter__(self) -> Self:
        with storage_errors(str(self.folder)):
            for name in (SEGMENTS, ERASURES):
                make_folder(self.folder / name)
            self._salt = read_salt(self.folder)
        self._erasures = self._last_erasure()
        await asyncio.to_thread(self._read_erasures)
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._compactions.put(True)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._write, self._compact)]
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._queue.put(None)
        for thread in tuple(self._threads):
            await asyncio.to_thread(thread.join)

    async def append(self, record: Record) -> None:
        """Write a record, and return when it is durable.

        If the call is cancelled, the record may have been written or not. Raises `StorageError` if it could not be
        written, e.g. because the disk is full. It is not in the log then. Raises `DataError` if JSON cannot hold it.
        """
        line = encode(record)
        if not self._open:
            raise StorageError(f"the serving log {self.folder} is closed. Record {record.id} was not written")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(line, loop, loop.create_future())
        self._counts.submitted += 1
        self._queue.put(waiting)
        await waiting.done

    def user_hash(self, name: str) -> str:
        """HMAC-SHA256 of a user's name, keyed by the salt. Raises `StorageError` if the log was not opened yet."""
        return hash_user(self._secret, name)

    def is_conversation_erased(self, conversation_id: str, *, user: str = "", time: datetime | None = None) -> bool:
        """True if this process erased the conversation, or another process did so at least a moment ago.

        With the hash of its user and the time of its start, it is also true if the user was erased after that time.
        While the document of an erasure cannot be read, any other conversation raises `DataError`, because the document
        may name it.
        """
        if name_digest(conversation_id) in self._erased:
            return True
        if user and time is not None:
            digest, erasures = name_digest(user), list(self._known_erasures.values())
            if any(time <= erasure.time and digest in erasure.users for erasure in erasures):
                return True
        if self._damaged_erasure is not None:
            raise self._damaged_erasure
        return False

    @property
    def ids(self) -> ServingIds:
        """Ids of conversations and turns. Raises `StorageError` if the log was not opened yet."""
        return ServingIds(self._secret)

    @property
    def _secret(self) -> bytes:
        if self._salt is None:
            raise StorageError(
                f"the serving log {self.folder} is not open. Enter `async with ServingLog(folder) as log` before you "
                "use it"
            )
        return self._salt

    def publish_erasures(self) -> None:
        """Hand new erasures to the event loop, which ends turns in progress of the erased users and conversations."""
        for erasure in self._read_erasures():
            self._loop.call_soon_threadsafe(self.on_erasure, erasure)

    def stats(self) -> LogStats:
        """Counts since the log was opened. Any thread may call this."""
        counts = self._counts
        return LogStats(
            records=counts.records,
            refused=counts.refused,
            syncs=counts.syncs,
            bytes=counts.bytes,
            waiting=counts.submitted - counts.records - counts.refused,
            compaction_error=counts.compaction_error,
        )

    def _write(self) -> None:
        """Thread of the writer: write all waiting records with one write and one sync."""
        running = True
        while running:
            batch, running = self._take()
            self._commit(batch)
        if self._segment is not None:
            self._segment.close()
        self._compactions.put(False)

    def _take(self) -> tuple[list[_Waiting], bool]:
        """Waiting records, none if none came within 0.2 s, and False if the log is closing and no more will come."""
        batch: list[_Waiting] = []
        try:
            item = self._queue.get(timeout=_IDLE_S)
            while item is not None:
                batch.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, batch: list[_Waiting]) -> None:
        content, failure = b"".join(item.line for item in batch), None
        try:
            self._end_segment()
            if not batch:
                return
            if self._segment is None:
                self._segment = Segment(self.folder, self._sync)
            self._segment.write(content)
        except Exception as error:
            cause = error if isinstance(error, OSError) else one_line(error)
            failure = storage_error(error, str(self.folder)) or StorageError(
                f"cannot write the serving log {self.folder}: {cause}. Repair the disk, or serve with a log elsewhere"
            )
            self._close_segment()
            self._counts.refused += len(batch)
        else:
            self._counts.records += len(batch)
            self._counts.syncs += 1
            self._counts.bytes += len(content)
        for loop in {id(item.loop): item.loop for item in batch}.values():
            futures = [item.done for item in batch if item.loop is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures, failure)

    def _end_segment(self) -> None:
        """Close the segment if it is large or old, or if an erasure may have to remove records from it."""
        erasures, segment = self._last_erasure(), self._segment
        if segment is not None and (
            segment.size >= self._segment_bytes
            or monotonic() - segment.begun >= self._segment_s
            or erasures != self._erasures
        ):
            self._close_segment()
        if erasures != self._erasures:
            self.publish_erasures()
        self._erasures = erasures

    def _read_erasures(self) -> list[Erasure]:
        """Read the new documents. A damaged document is read again after the folder has changed."""
        erasures = []
        with self._reading_erasures:
            damage = None
            for path in sorted((self.folder / ERASURES).glob("*.json")):
                if path.stem in self._known_erasures:
                    continue
                try:
                    erasure = read_erasure(path)
                except DataError as error:  # readers of the log refuse it as well
                    logger.error(
                        "the serving log has an erasure that cannot be read. Turns in progress go on, and feedback is "
                        "refused: %s",
                        error,
                    )
                    damage = error
                else:
                    self._known_erasures[path.stem] = erasure
                    self._erased |= erasure.conversations
                    erasures.append(erasure)
            self._damaged_erasure = damage
        return erasures

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
            self._compactions.put(True)

    def _last_erasure(self) -> int:
        return (self.folder / ERASURES).stat().st_mtime_ns

    def _compact(self) -> None:
        """Thread of compaction and retention, which runs after each segment, and if none ended for `segment_s`.

        If a step fails, the other steps are still done. On a full disk a compaction fails until the retention has
        deleted a day.
        """
        while self._compaction_is_due():
            errors = [self._attempt(step) for step in (compact, merge_days, self._expire)]
            failed = next((error for error in errors if error is not None), None)
            if failed not in (None, self._counts.compaction_error):
                logger.error(
                    "the serving log is not compacted, which is tried again after the next segment: %s", failed
                )
            self._counts.compaction_error = failed

    def _attempt(self, step: Callable[[Path], object]) -> str | None:
        """Do a step of the compaction. Returns its error."""
        try:
            step(self.folder)
        except Exception as error:  # of any library: it is tried again after the next segment
            return str(error) if isinstance(error, (GRPOError, OSError)) else one_line(error)
        return None

    def _expire(self, folder: Path) -> None:
        if self._retention_days is not None:
            expire(folder, self._retention_days)

    def _compaction_is_due(self) -> bool:
        """Wait until a segment ends or `segment_s` has passed. False if the log closes."""
        try:
            return self._compactions.get(timeout=self._segment_s)
        except queue.Empty:
            return True


def _resolve(futures: list[asyncio.Future[None]], failure: StorageError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)
