"""Writing to a disk: whole files or none, and errors that say what to do."""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.errors import StorageError

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free space or set `store` to another disk",
    errno.EDQUOT: "the quota is used up: free space or set `store` elsewhere",
    errno.EROFS: "the store is read-only: set `store` to a writable folder",
    errno.EACCES: "the store may not be written: fix its permissions or set `store` elsewhere",
    errno.EPERM: "the store may not be written: fix its permissions or set `store` elsewhere",
}


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Turn a full disk, a read-only store and missing permissions into a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _REMEDIES:
            raise StorageError(f"cannot write {place}: {_REMEDIES[error.errno]}") from error
        raise


def write_atomically(path: Path, content: str) -> None:
    """Write a text file so that a reader sees the old content or the new one, never a part."""
    with storage_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            partial.write_text(content, encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(path: Path) -> str:
    """sha256 of a file's bytes, or of the names and bytes of all files below a folder. Raises `OSError`."""
    if not path.is_dir():
        return file_digest(path)
    digest = hashlib.sha256()
    for file in sorted(below for below in path.rglob("*") if below.is_file()):
        digest.update(f"{file.relative_to(path)}\0{file_digest(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
