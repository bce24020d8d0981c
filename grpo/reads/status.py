"""`os.stat`, which has no audit event: reported while something is recorded, and left as it is otherwise.

`Path.exists`, `Path.stat` and `os.path.getmtime` call it. Not covered: `from os import stat` of before, the entries of
`os.scandir`, and libraries in C.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_EXISTENCE = frozenset({"exists", "lexists", "isfile", "isdir", "is_file", "is_dir", "islink", "is_symlink", "access"})
"""Functions that read no more of a status than what it is of."""
_NOT_READ = frozenset({"realpath", "_joinrealpath", "resolve", "samefile", "ismount", "makedirs", "mkdir"})
_lock = threading.Lock()
_users: list[Callable[[str, bool], None]] = []
_stat = os.stat


@contextmanager
def recorded(report: Callable[[str, bool], None]) -> Iterator[None]:
    """Let `report(path, whole)` have each path whose status is read while the block runs, `whole` or its existence."""
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
    """Put a function in the place of `os.stat`, and into the sets that say what it can."""
    before, os.stat = os.stat, function
    for abilities in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if before in abilities:
            abilities.add(function)
