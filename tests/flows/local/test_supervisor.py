from __future__ import annotations

import logging
from pathlib import Path

import pytest

from grpo.errors import ConfigError
from grpo_local.service import Service, free_port
from grpo_local.supervisor import restart_if_dead, supervise_once


@pytest.mark.parametrize("error", [ConfigError("port in use"), OSError("disk full"), ValueError("no UUID")], ids=repr)
def test_an_error_of_one_check_is_logged_and_does_not_stop_the_others(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    """Expected or not: the supervisor is not restarted by itself."""
    checked = []

    def fails() -> None:
        raise error

    with caplog.at_level(logging.ERROR, "grpo_local.supervisor"):
        supervise_once({"mlflow": fails, "cpu": lambda: checked.append("cpu")})
    assert checked == ["cpu"]
    assert f"mlflow: {type(error).__name__}: {error}" in caplog.text


def test_a_dead_server_is_restarted_without_waiting(tmp_path: Path):
    """A server that never answers would block the supervisor."""
    sleep = ("timeit", "-n1", "-r1", "-s", "import time", "time.sleep(600)")
    slow = Service(name="slow", home=tmp_path, arguments=sleep, port=free_port())
    restart_if_dead(slow)
    first = slow.process()
    assert first is not None
    restart_if_dead(slow)
    assert slow.process() == first
    first.kill()
    first.wait(timeout=300)
    restart_if_dead(slow)
    assert slow.process() not in (None, first)
    slow.stop(at_once=True)
