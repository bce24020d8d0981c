"""Atomic file writes, file digests, and storage errors with remedies."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from grpo.errors import GRPOError, StorageError

JsonT = TypeVar("JsonT", list[Any], dict[str, Any])
_ELSEWHERE = "write elsewhere (`store` of a config, GRPO_HOME, or the folder that the command names)"
_REMEDIES = {
    errno.ENOSPC: f"the disk is full: free space, or {_ELSEWHERE}",
    errno.EDQUOT: f"the quota is used up: free space, or {_ELSEWHERE}",
    errno.EFBIG: "it would be larger than a file of this process may be: raise the limit (`ulimit -f`)",
    errno.EROFS: f"the file system is read-only: {_ELSEWHERE}",
    errno.EACCES: f"permission denied: fix the permissions, or {_ELSEWHERE}",
    errno.EPERM: f"permission denied: fix the permissions, or {_ELSEWHERE}",
}
_OF_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Only a write is refused with these numbers, so that the place of the file does not matter."""
_ERROR_TEXTS = {
    **{form.format(number): number for number in _OF_WRITES for form in ("(os error {})", "[Errno {}]")},
    "database or disk is full": errno.ENOSPC,
}
"""Error numbers as Rust, Python and SQLite write them into messages that libraries pass on without the number."""
NO_ROOM_BYTES = 2**20
"""A disk with less free space counts as full."""


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Turn a full disk, a read-only file system and missing permissions into a `StorageError` with the remedy.

    This also works if a library wraps the system's error in its own type, e.g. `SafetensorError` or `OperationalError`.
    """
    try:
        yield
    except GRPOError:
        raise
    except Exception as error:
        if (known := storage_error(error, place)) is None:
            raise
        raise known from error


def storage_error(error: BaseException, place: str) -> StorageError | None:
    """Return the `StorageError` if an error was caused by a full disk or by missing permissions, else None.

    A full disk, a read-only file system and a file above its limit count at any depth of the causes. A missing
    permission counts only if the file is in `place` or has no name, because a source that cannot be read is another
    error. If the error names no file, `place` is named.
    """
    for cause in causes(error):
        number = _number(cause)
        at = str(_file_of(cause) or place)
        if number in _OF_WRITES or (cause is error and number in _REMEDIES and at.startswith(place)):
            action = "write" if number in _OF_WRITES else "use"
            return StorageError(f"cannot {action} {at}: {_REMEDIES[number]}")
    return None


def _file_of(error: BaseException) -> object:
    """File that an error of the system names, or None. A copy of a folder has a list of its files."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return next((copy for _, copy, _ in error.args[0]), None)
    return getattr(error, "filename", None)


def is_full(path: Path) -> bool:
    """True if the disk of a path has no room for a file. False for a path that cannot be looked at."""
    try:
        return shutil.disk_usage(nearest_existing(path)).free < NO_ROOM_BYTES
    except OSError:  # e.g. a name that is too long; this is called while another error is handled
        return False


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def write_atomically(path: Path, content: str, *, mode: int = 0o666) -> None:
    """Write a text file atomically, so that a reader sees either the old content or the new one.

    The file has `mode`, less the umask, from its creation on.
    """
    with storage_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def read_json(path: Path, kind: type[JsonT]) -> JsonT:
    """JSON of a record in the home, or an empty one if there is no file. Raises `StorageError` if it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return kind()
    except ValueError:
        content = None
    if not isinstance(content, kind):
        raise StorageError(f"the record {path} is damaged. Restore it from a backup")
    return content


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_digest(path: Path) -> str:
    """sha256 of a file's bytes, or of the names and bytes of all files below a folder. Raises `OSError`."""
    if not path.is_dir():
        return file_digest(path)
    digest = hashlib.sha256()
    for file in files_below(path):
        digest.update(f"{file.relative_to(path)}\0{file_digest(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Files in a folder and its folders, sorted, also behind links to folders, because readers follow these.

    A link to a folder that it is in is not followed. Raises `OSError` for a folder that cannot be read.
    """
    return sorted(_files_below(folder, frozenset()))


def _files_below(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    place = folder.resolve()
    if place in above:
        return
    for entry in os.scandir(folder):
        if entry.is_dir():
            yield from _files_below(Path(entry.path), above | {place})
        elif entry.is_file():
            yield Path(entry.path)


def stamped_digest(path: Path) -> str:
    """`content_digest` that is remembered for the same sizes and modification times. Raises `OSError`."""
    files = files_below(path) if path.is_dir() else [path]
    stamp = tuple((str(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in files)
    key = (str(path.resolve()), stamp)
    if key not in _digests:
        _digests[key] = content_digest(path)
    return _digests[key]


_digests: dict[tuple[str, tuple[tuple[str, int, int], ...]], str] = {}


def _number(error: BaseException) -> int | None:
    """Error number of the system. If the error has none, a full disk is recognized by the message."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    return next((number for words, number in _ERROR_TEXTS.items() if words in text), None)


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists and that this user may see."""
    path = path.resolve()
    return next(above for above in (path, *path.parents) if os.path.exists(above))  # noqa: PTH110 - no PermissionError
