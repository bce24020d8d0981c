"""Files that are opened below a folder by Python or by other code: pyarrow in C++, a program, a library through ctypes.

The kernel (inotify, Linux) reports every file that is opened, also by editors and other programs. Therefore a file
counts only if the code may name it. Not covered: files in other folders, other operating systems, and more than
`_MOST_FOLDERS` folders. A read of such a file has to be declared.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN, _WRITTEN, _FOLDER = 0x20, 0x8, 0x40000000
_MOST_FOLDERS = 1000
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "mlruns"})
_SYSTEM = frozenset({"bin", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr", "var"})
"""Folders of the system, which are not watched because other programs read in them as well."""
_SHORTEST_PART = 4
_DEEP = 3
"""Parts of the shallowest folder that is watched, e.g. `/data/exports`. In `/tmp` everybody reads."""
_HEAD = struct.Struct("iIII")


@contextmanager
def watched(folders: Iterable[Path]) -> Iterator[list[str]]:
    """Yield a list that after the block has the files below these folders that were opened and not written.

    If a path is a file, only this file is watched. Hidden folders are left out. The list stays empty if the kernel
    cannot report opened files.
    """
    opened: list[str] = []
    try:
        descriptor = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except AttributeError:  # not Linux
        descriptor = -1
    if descriptor < 0:
        yield opened
        return
    try:
        places = _watch(descriptor, folders)
        yield opened
        opened.extend(sorted(_opened(descriptor, places)))
    finally:
        os.close(descriptor)


def existing_places(texts: Iterable[str]) -> list[Path]:
    """Files, and folders by an absolute path, that texts name."""
    return sorted({path.absolute() for text in texts if _is_place(path := Path(text), text)})


def _is_place(path: Path, text: str) -> bool:
    if not text.strip() or "\0" in text or "\n" in text:
        return False
    try:
        is_own = path.is_absolute() and len(path.parts) >= _DEEP and path.parts[1] not in _SYSTEM
        return path.is_file() or (is_own and path.is_dir())
    except OSError:
        return False


def may_name(texts: Iterable[str], path: str) -> bool:
    """Return True if a text has a file's name, or a part of it as in `f"words_{language}.parquet"`.

    Python files never count.
    """
    name = Path(path).name
    if name.endswith((".py", ".pyc")):
        return False
    return any(name in text or (len(text) >= _SHORTEST_PART and text in name) for text in texts)


def _watch(descriptor: int, folders: Iterable[Path]) -> dict[int, str]:
    add = ctypes.CDLL(None, use_errno=True).inotify_add_watch
    waiting, places = [str(folder) for folder in folders], dict[int, str]()
    for place in waiting:  # which grows: folders near the top come first
        if len(places) >= _MOST_FOLDERS:
            break
        number = add(descriptor, os.fsencode(place), _OPEN | _WRITTEN)
        if number < 0:
            continue
        places[number] = place
        if Path(place).is_dir():
            waiting.extend(_below(place))
    return places


def _below(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [
                entry.path
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.name not in _SKIPPED and not entry.name.startswith(".")
            ]
    except OSError:
        return []


def _opened(descriptor: int, places: dict[int, str]) -> set[str]:
    opened: set[str] = set()
    written: set[str] = set()
    while True:
        try:
            events = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return opened - written
        while events:
            number, mask, _, length = _HEAD.unpack_from(events)
            name = events[_HEAD.size : _HEAD.size + length].rstrip(b"\0")
            events = events[_HEAD.size + length :]
            if number in places and not mask & _FOLDER:
                path = str(Path(places[number], os.fsdecode(name))) if name else places[number]
                (written if mask & _WRITTEN else opened).add(path)
