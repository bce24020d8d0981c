from __future__ import annotations

import asyncio

import pytest

from grpo.errors import ConfigError
from grpo.policy.circuit_breaker import CircuitBreaker, CircuitOpen


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Server:
    """A function behind a breaker with given outcomes."""

    def __init__(self, **settings: float) -> None:
        self.clock = _Clock()
        self.breaker = CircuitBreaker(clock=self.clock, **settings)  # type: ignore[arg-type]
        self.calls = 0

    def call(self, error: BaseException | None = None) -> None:
        @self.breaker
        async def request() -> None:
            self.calls += 1
            if error is not None:
                raise error

        asyncio.run(request())

    def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(ConnectionResetError):
                self.call(ConnectionResetError("gone"))


def test_the_breaker_opens_after_consecutive_failures_and_rejects_calls():
    """Four failures leave it closed, the fifth opens it; the sixth call is not made."""
    server = _Server(failure_threshold=5, timeout_s=60)
    server.fail(4)
    assert server.breaker.state == "closed"
    server.fail(1)
    assert server.breaker.state == "open"
    with pytest.raises(CircuitOpen, match=r"not asked after 5 failures in a row\. One call may try in 60 s"):
        server.call()
    assert server.calls == 5


def test_a_success_resets_the_failure_count():
    """4 + success + 4 are not five in a row."""
    server = _Server(failure_threshold=5)
    server.fail(4)
    server.call()
    server.fail(4)
    assert server.breaker.state == "closed"


def test_a_successful_trial_after_the_timeout_closes_it():
    """Half-open at 60 s, not at 59."""
    server = _Server(failure_threshold=2, timeout_s=60)
    server.fail(2)
    server.clock.now += 59
    assert server.breaker.state == "open"
    server.clock.now += 1
    assert server.breaker.state == "half-open"
    server.call()
    assert server.breaker.state == "closed"


def test_a_failed_trial_opens_it_for_the_full_timeout():
    """One failure is enough in that state."""
    server = _Server(failure_threshold=2, timeout_s=60)
    server.fail(2)
    server.clock.now += 60
    server.fail(1)
    assert server.breaker.state == "open"
    server.clock.now += 59
    with pytest.raises(CircuitOpen, match="in 1 s"):
        server.call()


def test_only_one_call_is_on_trial():
    """The second call finds the breaker open while the first is in progress."""
    server = _Server(failure_threshold=1, timeout_s=60)
    server.fail(1)
    server.clock.now += 60

    async def two() -> None:
        async with server.breaker:
            with pytest.raises(CircuitOpen):
                async with server.breaker:
                    pass
        async with server.breaker:
            pass

    asyncio.run(two())


def test_other_errors_neither_open_nor_close_it():
    """A bad request is not a connection failure."""
    server = _Server(failure_threshold=1, timeout_s=60)
    with pytest.raises(ValueError, match="bad"):
        server.call(ValueError("bad"))
    assert server.breaker.state == "closed"
    with pytest.raises(TimeoutError):
        server.call(TimeoutError())
    server.clock.now += 60
    with pytest.raises(ValueError, match="bad"):
        server.call(ValueError("bad"))
    assert server.breaker.state == "half-open"


def test_a_threshold_of_zero_is_refused():
    """The breaker would always be open."""
    with pytest.raises(ConfigError, match="failure_threshold 0 must be at least 1"):
        CircuitBreaker(failure_threshold=0)
