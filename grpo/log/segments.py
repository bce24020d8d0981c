"""Segment of the serving log: an append-only file that its writer keeps locked.

The lock tells other threads and processes that the segment is still being written. The kernel releases it when the
writer's process ends, also if the process is killed.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from grpo.log.folder import SEGMENT_SUFFIX, SEGMENTS

LOCK_FILE = ".lock"
"""File of a log that is locked while its tables are changed."""
_POLL_S = 0.02


class Segment:
    """Segment that is being written, locked until its writer closes it or is killed.

    The file is locked before it gets its name, so that no reader takes it for a segment without a writer.
    """

    def __init__(self, folder: Path, sync: Callable[[int], None]) -> None:
        """Create the file durably. Raises `OSError`."""
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:12]}"
        self.path = folder / SEGMENTS / f"{name}{SEGMENT_SUFFIX}"
        self.size = 0
        self.begun = monotonic()
        self._sync = sync
        hidden = self.path.with_name(f".{name}")
        self._descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hidden.rename(self.path)
            sync_folder(self.path.parent)
        except OSError:
            self.close()
            hidden.unlink(missing_ok=True)
            raise

    def write(self, content: bytes) -> None:
        """Append durably. Raises `OSError`, after the part of the content that was written has been cut off again."""
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            self._sync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
                os.fdatasync(self._descriptor)
            raise
        self.size += len(content)

    def close(self) -> None:
        """Release the file and its lock.

        An error is not raised, because all that was acknowledged is durable already. A network disk reports the error
        of a write once more here.
        """
        with suppress(OSError):
            os.close(self._descriptor)


@contextmanager
def closed_segment(path: Path, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock a segment that is not written any more and yield True. Yield False if its writer still holds the lock.

    It waits up to `wait_s` for the lock. A segment that is gone yields False as well.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)  # NFS refuses an exclusive lock on a file that is open for reading only
    except FileNotFoundError:
        yield False
        return
    try:
        yield _lock(descriptor, monotonic() + wait_s) and path.exists()
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep compaction, retention and erasure by other threads and processes away from a folder during the block.

    A file is locked and not the folder, because NFS keeps the lock of a folder on one machine.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def open_private(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that only its owner may read. Its content is durable after the block, its name is not."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_private(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically and durably. Only its owner may read it."""
    make_folder(path.parent)
    hidden = path.with_name(f".{uuid.uuid4().hex}")
    try:
        with open_private(hidden) as file:
            write(file)
        hidden.replace(path)
        sync_folder(path.parent)
    finally:
        hidden.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents durably. Only the owner may open them."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                return False
            sleep(_POLL_S)
        else:
            return True
