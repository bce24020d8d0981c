"""Locks between the processes and threads of one machine, which the kernel frees when their holder dies."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from grpo.storage.files import storage_errors

_LOCK = ".lock"


def file_lock(path: Path) -> FileLock:
    """A lock on a file of a local disk, held while its `with` block runs; whoever else wants it waits.

    A file system without `flock` is refused with `NotImplementedError` when the lock is taken: what stands in for it
    elsewhere would outlive a process that was killed. Threads that share one object share the lock, and any of
    them frees it: who wants to keep other threads out takes an object of his own.
    """
    with storage_errors(str(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, thread_local=False, fallback_to_soft=False)


@contextmanager
def scratch_path(parent: Path) -> Iterator[Path]:
    """Yield a fresh path below `parent` for a file or folder; it is removed in the end.

    Places of processes that were killed are removed when the next one is asked for: each is locked by its process.
    """
    with storage_errors(str(parent)):
        parent.mkdir(parents=True, exist_ok=True)
    place = parent / uuid.uuid4().hex
    lock = file_lock(place.with_name(place.name + _LOCK))
    with lock:
        _sweep(parent)
        try:
            yield place
        finally:
            remove(place)
            remove(Path(lock.lock_file))


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, where it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove the places below a folder whose process has ended."""
    for place in parent.iterdir():
        if place.suffix == _LOCK:
            continue
        lock = file_lock(place.with_name(place.name + _LOCK))
        with suppress(Timeout), lock.acquire(timeout=0):
            remove(place)
            remove(Path(lock.lock_file))
