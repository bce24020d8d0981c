"""Circuit breaker: calls to a server that is down fail fast for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncContextDecorator
from types import TracebackType
from typing import Literal

from grpo.errors import ConfigError


class CircuitOpen(ConnectionError):
    """Raised instead of sending a request, because the last calls failed."""


class CircuitBreaker(AsyncContextDecorator):
    """Circuit breaker around async calls (Nygard, Release It!, 2007).

        closed     every call passes; `failure_threshold` consecutive connection errors or timeouts open it
        open       every call fails at once with `CircuitOpen`, for `timeout_s` seconds
        half-open  one trial call passes: success closes it, failure opens it again

    Use `async with breaker:` for a block, `@CircuitBreaker(failure_threshold=5, timeout_s=60)` for a function. Other
    exceptions are not about the connection, so they neither count as failures nor close the circuit.
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
        self._on_trial = False

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """State that the next call meets."""
        if self._opened is None:
            return "closed"
        return "open" if self._wait_s() > 0 or self._on_trial else "half-open"

    async def __aenter__(self) -> None:
        """Pass, or raise `CircuitOpen`."""
        if self.state == "open":
            wait_s = max(0.0, self._wait_s())
            raise CircuitOpen(f"not asked after {self._failures} failures in a row. One call may try in {wait_s:.0f} s")
        self._on_trial = self.state == "half-open"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record the outcome of the call."""
        self._on_trial = False
        if error is None:
            self._failures, self._opened = 0, None
        elif isinstance(error, (ConnectionError, TimeoutError)):
            self._failures += 1
            if self._failures >= self.failure_threshold:
                self._opened = self._clock()

    def _wait_s(self) -> float:
        return 0.0 if self._opened is None else self._opened + self.timeout_s - self._clock()
