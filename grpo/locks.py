"""Locks between the processes and threads of one machine, which the kernel frees when their holder dies."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from grpo.files import storage_errors


def file_lock(path: Path) -> FileLock:
    """A lock on a file of a local disk, held while its `with` block runs; whoever else wants it waits.

    A file system without `flock` is refused with `NotImplementedError` when the lock is taken: what stands in for it
    elsewhere would outlive a process that was killed. Threads that share one object share the lock, and any of
    them frees it: who wants to keep other threads out takes an object of his own.
    """
    with storage_errors(str(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, thread_local=False, fallback_to_soft=False)
