from __future__ import annotations

import asyncio

import pytest

from grpo.errors import ConfigError
from grpo.policy.circuit_breaker import CircuitBreaker, CircuitOpen


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Line:
    """A function behind a breaker, whose next ends are given."""

    def __init__(self, **settings: float) -> None:
        self.clock = _Clock()
        self.breaker = CircuitBreaker(clock=self.clock, **settings)  # type: ignore[arg-type]
        self.calls = 0

    def call(self, error: BaseException | None = None) -> None:
        @self.breaker
        async def talk() -> None:
            self.calls += 1
            if error is not None:
                raise error

        asyncio.run(talk())

    def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(ConnectionResetError):
                self.call(ConnectionResetError("gone"))


def test_a_breaker_opens_after_failures_in_a_row_and_then_asks_nobody():
    """Four failures leave it closed, the fifth opens it; the sixth call does not happen."""
    line = _Line(failure_threshold=5, timeout_s=60)
    line.fail(4)
    assert line.breaker.state == "closed"
    line.fail(1)
    assert line.breaker.state == "open"
    with pytest.raises(CircuitOpen, match="not asked after 5 failures in a row; one call may try in 60 s"):
        line.call()
    assert line.calls == 5


def test_a_success_forgets_the_failures_before_it():
    """4 + success + 4 is no row of five."""
    line = _Line(failure_threshold=5)
    line.fail(4)
    line.call()
    line.fail(4)
    assert line.breaker.state == "closed"


def test_after_its_time_one_call_may_try_and_success_closes_it():
    """Half-open at 60 s, not at 59."""
    line = _Line(failure_threshold=2, timeout_s=60)
    line.fail(2)
    line.clock.now += 59
    assert line.breaker.state == "open"
    line.clock.now += 1
    assert line.breaker.state == "half-open"
    line.call()
    assert line.breaker.state == "closed"


def test_a_failure_on_trial_opens_it_for_the_whole_time_again():
    """One is enough then."""
    line = _Line(failure_threshold=2, timeout_s=60)
    line.fail(2)
    line.clock.now += 60
    line.fail(1)
    assert line.breaker.state == "open"
    line.clock.now += 59
    with pytest.raises(CircuitOpen, match="in 1 s"):
        line.call()


def test_only_one_call_is_on_trial():
    """The second finds the breaker open while the first is under way."""
    line = _Line(failure_threshold=1, timeout_s=60)
    line.fail(1)
    line.clock.now += 60

    async def two() -> None:
        async with line.breaker:
            with pytest.raises(CircuitOpen):
                async with line.breaker:
                    pass
        async with line.breaker:
            pass

    asyncio.run(two())


def test_what_a_server_refuses_says_nothing_about_the_connection():
    """A bad request neither counts nor closes."""
    line = _Line(failure_threshold=1, timeout_s=60)
    with pytest.raises(ValueError, match="bad"):
        line.call(ValueError("bad"))
    assert line.breaker.state == "closed"
    with pytest.raises(TimeoutError):
        line.call(TimeoutError())
    line.clock.now += 60
    with pytest.raises(ValueError, match="bad"):
        line.call(ValueError("bad"))
    assert line.breaker.state == "half-open"


def test_a_breaker_that_is_always_open_is_refused():
    """Zero failures cannot be told from none."""
    with pytest.raises(ConfigError, match="failure_threshold 0 must be at least 1"):
        CircuitBreaker(failure_threshold=0)
