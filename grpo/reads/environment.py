"""Environment variables that are read: `os.environ` reports each look-up, because Python has no audit event for it.

A copy of the whole environment, e.g. `{**os.environ}` for a program that is started, does not count as a read of any
variable. Not covered: `getenv` of libraries in C.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator

_IGNORED = frozenset({
    "PATH", "PWD", "OLDPWD", "HOME", "USER", "LOGNAME", "SHELL", "SHLVL", "TERM", "COLUMNS", "LINES", "LANG",
    "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "HOSTNAME", "DISPLAY", "EDITOR", "PAGER",
    "VIRTUAL_ENV", "OMP_NUM_THREADS", "NO_COLOR", "FORCE_COLOR", "_",
})  # fmt: skip
"""Variables of the machine, the shell and the process. They may differ although the same thing is computed."""
_IGNORED_PREFIXES = (
    *("PYTHON", "GRPO_", "PREFECT_", "MLFLOW_", "PYTEST_", "LC_", "XDG_", "SSH_", "DASK_", "RAY_"),
    *("PYDANTIC_", "MPL"),  # pydantic and Matplotlib look theirs up more than a thousand times in each run
)
_bulk = threading.local()
_report: list[Callable[[str, str | None], None]] = []


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """`os.environ` that reports each look-up of a variable."""

    def __getitem__(self, key: str) -> str:
        try:
            value: str = super().__getitem__(key)
        except KeyError:
            _look_up(key, None)
            raise
        _look_up(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        _bulk.place = _place()
        return super().__iter__()


def install(report: Callable[[str, str | None], None]) -> None:
    """Call `report` with the name and the value of each variable that is looked up from now on."""
    _report[:] = [report]
    if type(os.environ) is os._Environ:
        os.environ.__class__ = _RecordingEnviron


def _look_up(key: object, value: str | None) -> None:
    if not isinstance(key, str) or key in _IGNORED or key.startswith(_IGNORED_PREFIXES):
        return
    if getattr(_bulk, "place", None) is not None and _bulk.place == _place():
        return
    for report in _report:
        report(key, value)


def _place() -> tuple[int, int, int]:
    """Frame, code and instruction that uses the environment: `{**os.environ}` is one instruction with many look-ups."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "os", "collections.abc"):
        frame = frame.f_back
    return id(frame), id(frame.f_code), frame.f_lasti
