"""Code that does not terminate is interrupted in its own thread only."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from grpo.renderers.time_limit import time_limit


def _endless() -> None:
    with time_limit(0.05):
        while True:
            try:
                sum(range(100))
            except Exception:  # noqa: BLE001 - the code under the limit may do so
                continue


def test_an_endless_loop_raises_a_timeout():
    """Even if it catches every exception."""
    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        _endless()


def _ignoring_an_error() -> None:
    with time_limit(0.05):
        with suppress(BaseException):  # as Python does in a callback of the garbage collector
            while True:
                sum(range(100))
        while True:
            sum(range(100))


def test_a_lost_interruption_is_repeated():
    """The block computes on after the first one."""
    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        _ignoring_an_error()


def test_each_thread_has_its_own_limit():
    """The loop in another thread is interrupted, this thread is not."""
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(_endless)
        assert isinstance(other.exception(), TimeoutError)


def test_code_that_ends_leaves_no_thread_and_keeps_its_errors():
    """A result and an exception pass through unchanged."""
    before = {*threading.enumerate()}
    with time_limit(60):
        value = 3
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError(value)
    assert {*threading.enumerate()} <= before


def test_time_off_the_processor_does_not_count():
    """Twice the limit on the clock, none of it computing: a busy machine is not an endless template."""
    with time_limit(0.5):
        time.sleep(1.0)


def _waiting() -> None:
    with time_limit(0.01):
        while True:
            time.sleep(0.005)


def test_code_that_only_waits_ends_too():
    """After 20 times the limit on the clock."""
    with pytest.raises(TimeoutError, match=r"not done after 0\.01 s"):
        _waiting()


def _endless_in_two_limits() -> None:
    with time_limit(0.05), time_limit(60):
        while True:
            sum(range(100))


def test_the_limit_around_another_one_raises_its_own_error():
    """The inner block does not take the interruption of the outer one for its own."""
    with pytest.raises(TimeoutError, match=r"not done after 0\.05 s"):
        _endless_in_two_limits()
