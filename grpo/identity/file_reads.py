"""Record of files and folders that the user's code reads in a stage, with their digests.

Python's audit events (PEP 578) report every `open`, `os.listdir` and `os.scandir` of this thread, its tasks and
`asyncio.to_thread`. Not covered: libraries that open files in C++ (pyarrow, safetensors) or in their own threads; such
files have to be declared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from grpo.storage.files import file_digest
from grpo.storage.shipped import package_folder, shipped_folder

_LISTINGS = ("os.listdir", "os.scandir")
_SYSTEM = ("/proc", "/sys", "/dev")
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
_INSTALLED = Path(sysconfig.get_path("purelib")).resolve()
_PROJECT = tuple(map(package_folder, ("grpo", "grpo_tasks", "grpo_flows")))
_recorder: ContextVar[ReadRecorder | None] = ContextVar("read_recorder", default=None)


class ReadRecorder:
    """Paths that were opened for reading or listed; a file that was also written is not an input."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._listed: set[str] = set()
        self._written: set[str] = set()

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event."""
        if not arguments or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return  # a descriptor of a file that was opened before
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - a link is what the code opened
        if event in _LISTINGS:
            self._listed.add(path)
        elif _writes(*arguments[1:3]):
            self._written.add(path)
        else:
            self._read.add(path)

    def digests(self, *, exclude: tuple[Path, ...] = ()) -> dict[str, str | None]:
        """Current digests of the files and listings outside of the folders `exclude`; None for a missing one."""
        roots = (*map(str, (*_PROJECT, *exclude)), *_SYSTEM)
        paths = sorted({_source(path) for path in self._read - self._written} | self._listed)
        return {
            path: current_digest(path)
            for path in paths
            if _below(path, (str(shipped_folder()),)) or not (_below(path, roots) or _of_the_installation(path))
        }


@contextmanager
def recorded_reads() -> Iterator[ReadRecorder]:
    """Record the reads of this context while the block runs."""
    _install()
    recorder = ReadRecorder()
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


def current_digest(path: str) -> str | None:
    """Digest of a file's content or of a folder's names; None for a missing path."""
    try:
        if Path(path).is_dir():
            names = sorted(entry.name for entry in Path(path).iterdir())
            return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        return file_digest(Path(path))
    except OSError:
        return None


def changed(reads: Mapping[str, str | None]) -> list[str]:
    """Return the files and folders that changed since they were read."""
    return [path for path, digest in reads.items() if current_digest(path) != digest]


_installed: list[bool] = []


def _install() -> None:
    """Add the audit hook once per process; it cannot be removed."""
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" or event in _LISTINGS:
        recorder = _recorder.get()
        if recorder is not None:
            recorder.note(event, arguments)


def _writes(mode: object = None, flags: object = 0) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _source(path: str) -> str:
    """Map compiled Python to its source file."""
    if not path.endswith(".pyc"):
        return path
    try:
        return importlib.util.source_from_cache(path)
    except (ValueError, NotImplementedError):
        return path


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root + os.sep) for root in roots)


def _of_the_installation(path: str) -> bool:
    """Return True for code of Python and of installed packages, whose versions are in the identity already."""
    place = Path(path)
    if place.is_relative_to(_INSTALLED):
        return place.suffix in (".py", ".pyc", ".so", ".pth") or ".dist-info" in path or place.is_dir()
    return place.is_relative_to(_STANDARD)
