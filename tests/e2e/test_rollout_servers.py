"""Rollout servers of a real run end with it, whatever ends the run."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
import yaml

from grpo.serving.access.keys import PREFIX
from tests.contents import files_with
from tests.doubles import changed
from tests.e2e.commands import Command, start
from tests.e2e.served import own_environment
from tests.processes import each, family

SERVERS = {"backend": "servers", "servers": {"count": 2, "threads": 1}}


@pytest.mark.e2e
def test_servers_end_with_a_run_that_is_ended(desk_config: dict[str, object], tmp_path: Path, home: Path, server: str):
    """Three runs are ended after their first iterations, each by another signal. The last one is repeated to its end.

    No file of the runs' home or of Prefect's server has a key.
    """
    folder, config = tmp_path / "home", tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(changed(desk_config, rollout=SERVERS, store=str(folder / "store"))))
    environment = own_environment(folder, server)
    arguments: tuple[str, ...] = ()
    for seed, signum in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)):
        arguments = ("train", str(config), "--set", f"seed={seed}")
        output = tmp_path / f"{signum.name}.txt"
        command = start(*arguments, environment=environment, output=output)
        servers = _end_after_the_first_iteration(command, signum)
        assert servers, output.read_text(encoding="utf-8")
        assert command.process.exitcode != 0
        _, left = psutil.wait_procs(servers, timeout=300)
        assert not left, signum.name
    code, printed = start(*arguments, environment=environment, output=tmp_path / "last.txt").end()
    assert code in (0, 3), printed
    assert "rollout servers: started 2" in printed
    assert not list(folder.glob("services/rollout-server-*"))
    assert not files_with(PREFIX.encode(), folder, home)


def _end_after_the_first_iteration(command: Command, signum: signal.Signals) -> list[psutil.Process]:
    """Send a run a signal and wait for its end. Returns the processes that it had started."""
    servers: list[psutil.Process] = []
    for line in command.lines():
        if line.startswith("iteration 1 "):
            assert command.process.pid is not None
            leader, *servers = family(psutil.Process(command.process.pid))
            assert [("serve" in line) for line in each(servers, psutil.Process.cmdline)].count(True) == 2
            leader.send_signal(signum)
            break
    command.process.join()
    return servers
