"""Rotation of the logs of services: copied and cut by size, while their processes go on writing.

    services/serve.log  ──►  serve.log.1  serve.log.2  …        at most `KEPT` old files of about `LARGEST` bytes

The processes write to an inherited descriptor. Prefect and MLflow could not be told to open another file, because their
logging is not ours. The descriptor appends, so that after the cut they write at the new end. Lines that are written
between the copy and the cut are lost, which is a few milliseconds of a log.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import Timeout

from grpo.storage.locks import file_lock

LARGEST = 10 * 2**20  # bytes
KEPT = 4
_EVERY_S = 5.0


def rotate_logs(folder: Path, *, largest: int = LARGEST) -> None:
    """Rotate the logs in a folder of services that are larger. If another process rotates them, do nothing."""
    large = [path for path in folder.glob("*.log") if _size(path) > largest]
    if not large:
        return
    with suppress(Timeout, FileNotFoundError), file_lock(folder / "logs.lock").acquire(timeout=0):
        for path in large:
            if _size(path) > largest:
                _rotate(path)


def _rotate(path: Path) -> None:
    """Copy the log, and only then move the old files. A full disk would otherwise cost one old file in each attempt."""
    partial = path.with_name(f".{path.name}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as copy, path.open("rb") as log:
            shutil.copyfileobj(log, copy)
    except OSError:
        partial.unlink()
        raise
    for number in range(KEPT - 1, 0, -1):
        with suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.replace(partial, f"{path}.1")
    os.truncate(path, 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def rotating(folder: Path) -> Iterator[None]:
    """Rotate the logs in a folder while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            with suppress(OSError):  # e.g. a full disk: it tries again the next time
                rotate_logs(folder)

    thread = threading.Thread(target=watch, daemon=True, name="log rotation")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
