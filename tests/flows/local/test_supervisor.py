from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flows.local.service import Service, free_port
from flows.local.supervisor import restart_if_dead, supervise_once
from grpo.errors import ConfigError


@pytest.mark.parametrize("error", [ConfigError("port in use"), OSError("disk full"), ValueError("no UUID")], ids=repr)
def test_what_goes_wrong_with_one_is_said_and_keeps_no_other_from_being_looked_after(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    """Expected or not: nobody would start the supervisor again."""
    looked_at = []

    def fails() -> None:
        raise error

    with caplog.at_level(logging.ERROR, "flows.local.supervisor"):
        supervise_once({"mlflow": fails, "cpu": lambda: looked_at.append("cpu")})
    assert looked_at == ["cpu"]
    assert f"mlflow: {type(error).__name__}: {error}" in caplog.text


def test_a_server_that_died_is_started_again_and_not_waited_for(tmp_path: Path):
    """One that never answers would keep the supervisor from everything else."""
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
