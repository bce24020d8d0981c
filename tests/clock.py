"""A clock for tests that wait: time passes when there is nothing else to do, and only then."""

from __future__ import annotations

import asyncio


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
