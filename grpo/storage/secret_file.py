"""Files with a secret of the home, which only their owner may read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grpo.storage.files import storage_errors, write_atomically
from grpo.storage.locks import file_lock


def read_secret(file: Path, make: Callable[[], str]) -> str:
    """Read the line of a file. On first use `make` makes the line, and concurrent processes get the same one.

    If the file's mode lets others read it, the mode is corrected. Raises `StorageError` if the home may not be written.
    """
    with storage_errors(str(file.parent)), file_lock(file.with_suffix(".lock")):
        if not file.exists():
            write_atomically(file, f"{make()}\n", mode=0o600)
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        return file.read_text(encoding="utf-8").strip()
