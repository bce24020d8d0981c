"""Clocks for tests that wait: a loop that never waits, and functions of `time` that one module calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class IdleClockLoop(asyncio.SelectorEventLoop):
    """Event loop whose time stands while anything is ready to run, and else jumps to the next timer.

    A deadline of 0.1 s then passes between two turns of the loop, and never because the machine was busy. Not for code
    that waits for threads, processes or sockets.
    """

    _now = 0.0

    def time(self) -> float:
        """Seconds that were waited for."""
        return self._now

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self._now = max(self._now, min(timers))
        super()._run_once()  # type: ignore[misc]


def patch_time(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Replace functions of `time` for one module.

    If a test replaced `time.sleep` itself, a thread of an earlier test that sleeps in a loop would never sleep again.
    """
    monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
