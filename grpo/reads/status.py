"""Reports of `os.stat`, which has no audit event. It is replaced while something is recorded, and restored afterwards.

`Path.exists`, `Path.stat` and `os.path.getmtime` call it. Not covered: code that has run `from os import stat` before,
the entries of `os.scandir`, and libraries in C.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_EXISTENCE = frozenset({"exists", "lexists", "isfile", "isdir", "is_file", "is_dir", "islink", "is_symlink", "access"})
"""Functions that read only the existence or the kind of a file, not the rest of its status."""
_NOT_READ = frozenset({"realpath", "_joinrealpath", "resolve", "samefile", "ismount", "makedirs", "mkdir"})
_lock = threading.Lock()
_users: list[Callable[[str, bool], None]] = []
_stat = os.stat


@contextmanager
def recorded(report: Callable[[str, bool], None]) -> Iterator[None]:
    """Call `report(path, whole)` each time that the status of a path is read while the block runs.

    `whole` is False if only the existence of the path is read.
    """
    with _lock:
        _users.append(report)
        _replace(_reporting)
    try:
        yield
    finally:
        with _lock:
            _users.remove(report)
            if not _users:
                _replace(_stat)


def _reporting(path: Any, *args: Any, **options: Any) -> os.stat_result:
    if isinstance(path, (str, bytes, os.PathLike)) and options.get("dir_fd") is None and _users:
        caller = sys._getframe(1).f_code.co_name
        above = sys._getframe(2).f_code.co_name if caller == "stat" else caller
        if above not in _NOT_READ:
            whole = above not in _EXISTENCE
            text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - a link is what is named
            _users[-1](text, whole)
    return _stat(path, *args, **options)


def _replace(function: Any) -> None:
    """Replace `os.stat` by a function, and add it to the sets `os.supports_*` that have the present one."""
    before, os.stat = os.stat, function
    for abilities in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if before in abilities:
            abilities.add(function)
