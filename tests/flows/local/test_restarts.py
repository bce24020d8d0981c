"""Restarts of services: a death, the pauses after it, and the end of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo_local.managed_process import ManagedProcess
from grpo_local.restarts import MOST_DEATHS, STEADY_S, Restarts, restart_if_dead, supervise_once
from tests.ports import own_port
from tests.waiting import until

SLEEP = ("timeit", "-n1", "-r1", "-s", "import time", "time.sleep(600)")


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[ManagedProcess]:
    """A server that never answers."""
    service = ManagedProcess(name="slow", home=tmp_path, arguments=SLEEP, port=own_port())
    yield service
    service.stop(at_once=True)


@pytest.mark.parametrize("error", [ConfigError("port in use"), OSError("disk full"), ValueError("no UUID")], ids=repr)
def test_an_error_of_one_check_is_logged_and_does_not_stop_the_others(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    """Expected or not: the supervisor is not restarted by itself."""
    checked = []

    def fails() -> None:
        raise error

    with caplog.at_level(logging.ERROR, "grpo_local.restarts"):
        supervise_once({"mlflow": fails, "cpu": lambda: checked.append("cpu")})
    assert checked == ["cpu"]
    assert f"mlflow: {type(error).__name__}: {error}" in caplog.text


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the supervisor. Threads of other tests may log as well."""
    return [record.getMessage() for record in caplog.records if record.name == "grpo_local.restarts"]


def _kill(service: ManagedProcess) -> None:
    process = service.process()
    assert process is not None
    process.kill()
    until("it has ended", lambda: service.process() is None, patience_s=300)  # which reads its exit code


def test_a_dead_server_is_restarted_without_waiting(slow: ManagedProcess):
    """A server that never answers would block the supervisor."""
    restart_if_dead(slow)
    first = slow.process()
    assert first is not None
    restart_if_dead(slow)
    assert slow.process() == first
    _kill(slow)
    restart_if_dead(slow)
    assert slow.process() not in (None, first)


def test_a_service_is_restarted_after_a_pause_that_doubles(slow: ManagedProcess, caplog: pytest.LogCaptureFixture):
    """Deaths are noticed at 10 s and 12 s. The restarts are due 1 s and 2 s later, at 11 s and 14 s."""
    slow.start()
    clock = Clock()
    restarts = Restarts(slow, clock)
    with caplog.at_level(logging.WARNING, "grpo_local.restarts"):
        for noticed, early, due in ((10.0, 10.5, 11.0), (12.0, 13.5, 14.0)):
            _kill(slow)
            clock.now = noticed
            restarts.check()
            clock.now = early
            restarts.check()
            assert slow.process() is None
            clock.now = due
            restarts.check()
            assert slow.process() is not None
    assert _lines(caplog) == [
        "slow has ended: SIGKILL has ended it. It is started again in 1 s",
        "slow has ended: SIGKILL has ended it. It is started again in 2 s",
    ]
    assert restarts.deaths == 2
    _kill(slow)
    clock.now = 14.0 + STEADY_S + 1.0
    restarts.check()
    assert restarts.deaths == 1  # it had lived for long enough


def test_a_service_that_always_ends_is_given_up_with_the_end_of_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """After five restarts, and in one line."""
    failing = ManagedProcess(name="failing", home=tmp_path, arguments=("no_such_module",))
    failing.start()
    clock = Clock()
    restarts = Restarts(failing, clock)
    with caplog.at_level(logging.ERROR, "grpo_local.restarts"):
        while not restarts.is_given_up:
            until("it has ended", lambda: failing.process() is None, patience_s=300)
            restarts.check()
            clock.now += 20.0
    (line,) = _lines(caplog)
    assert line == (
        f"failing has ended {MOST_DEATHS + 1} times in a row and is not started again: "
        f"{failing.last_line()}. See {failing.log}"
    )
    assert "No module named no_such_module" in line
    assert failing.process() is None
