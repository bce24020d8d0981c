"""A circuit breaker: a server that is down is left alone for a while, instead of being asked again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncContextDecorator
from types import TracebackType
from typing import Literal

from grpo.errors import ConfigError


class CircuitOpen(ConnectionError):
    """Not asked, because the last calls failed."""


class CircuitBreaker(AsyncContextDecorator):
    """Opens after so many failures in a row; later one call may try whether the server is back.

        closed     every call passes; `failure_threshold` dropped connections or time-outs in a row open it
        open       every call fails at once with `CircuitOpen`, for `timeout_s` seconds
        half-open  one call passes: success closes it, failure opens it again

    For a block, `async with breaker:`, or for a whole function, `@CircuitBreaker(failure_threshold=5, timeout_s=60)`.
    Other exceptions say nothing about the connection: they neither count nor close. (Nygard, Release It!, 2007.)
    """

    def __init__(
        self, *, failure_threshold: int = 5, timeout_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failure_threshold < 1:
            raise ConfigError(f"circuit breaker: failure_threshold {failure_threshold} must be at least 1")
        self.failure_threshold = failure_threshold
        self.timeout_s = timeout_s
        self._clock = clock
        self._failures = 0
        self._opened: float | None = None
        self._probing = False

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """What the next call meets."""
        if self._opened is None:
            return "closed"
        return "open" if self._wait_s() > 0 or self._probing else "half-open"

    async def __aenter__(self) -> None:
        """Pass, or raise `CircuitOpen`."""
        if self.state == "open":
            wait_s = max(0.0, self._wait_s())
            raise CircuitOpen(f"not asked after {self._failures} failures in a row; one call may try in {wait_s:.0f} s")
        self._probing = self.state == "half-open"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Count how the call ended."""
        self._probing = False
        if error is None:
            self._failures, self._opened = 0, None
        elif isinstance(error, (ConnectionError, TimeoutError)):
            self._failures += 1
            if self._failures >= self.failure_threshold:
                self._opened = self._clock()

    def _wait_s(self) -> float:
        return 0.0 if self._opened is None else self._opened + self.timeout_s - self._clock()
