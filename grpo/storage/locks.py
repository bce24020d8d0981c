"""File locks between processes and threads of one machine. The kernel releases the lock of a killed process."""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from grpo.storage.files import storage_errors

_LOCK = ".lock"


def file_lock(path: Path) -> FileLock:
    """Create a blocking lock on a file of a local disk.

    Acquiring it raises `NotImplementedError` if the file system has no `flock`, because a soft lock would outlive a
    killed process. Threads that share the object share the lock. To exclude other threads, use one object per thread.
    """
    with storage_errors(str(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


@contextmanager
def scratch_path(parent: Path) -> Iterator[Path]:
    """Yield a new path below `parent` for a file or folder, removed on exit.

    Each path is locked by its process, so that the next call can remove the paths of killed processes.
    """
    with storage_errors(str(parent)):
        parent.mkdir(parents=True, exist_ok=True)
    place = parent / uuid.uuid4().hex[:12]  # short, because Ray keeps sockets below it
    lock = file_lock(place.with_name(place.name + _LOCK))
    with lock:
        _sweep(parent)
        try:
            yield place
        finally:
            remove(place)
            remove(Path(lock.lock_file))


@contextmanager
def same_use(folder: Path, use: str) -> Iterator[bool]:
    """Use something together with all processes that use it in the same way, as long as the block runs.

    Yields False if a process uses it in another way. `folder` keeps a file for each way.
    """
    with storage_errors(str(folder)), file_lock(folder / f"all{_LOCK}"):
        own = (folder / use).open("ab")
        is_free = True
        for other in sorted(folder.iterdir()):
            if other.name not in (use, f"all{_LOCK}"):
                with other.open("ab") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        is_free = False
                    else:
                        other.unlink()
        if is_free:
            fcntl.flock(own, fcntl.LOCK_SH)
    with own:
        yield is_free


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sweep(parent: Path) -> None:
    """Remove the paths below a folder if the process that made them has ended."""
    for place in parent.iterdir():
        if place.suffix == _LOCK:
            continue
        lock = file_lock(place.with_name(place.name + _LOCK))
        with suppress(Timeout), lock.acquire(timeout=0):
            remove(place)
            remove(Path(lock.lock_file))
