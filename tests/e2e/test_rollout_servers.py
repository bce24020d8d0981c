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
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.processes import each, family

SERVERS = {"backend": "servers", "servers": {"count": 2, "threads": 1}}


@pytest.mark.e2e
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_servers_end_with_a_run_that_is_ended(
    desk_config: dict[str, object], tmp_path: Path, home: Path, server: str, signum: signal.Signals
):
    """The run is ended after its first iteration. The next run starts new servers, and goes on to the end.

    No file of the run's home or of Prefect's server has a key.
    """
    folder, config = tmp_path / "home", tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(changed(desk_config, rollout=SERVERS, store=str(folder / "store"))))
    environment = own_environment(folder, server)
    command = start("train", str(config), environment=environment, output=tmp_path / "first.txt")
    servers: list[psutil.Process] = []
    for line in command.lines():
        if line.startswith("iteration 1 "):
            assert command.process.pid is not None
            leader, *servers = family(psutil.Process(command.process.pid))
            assert [("serve" in line) for line in each(servers, psutil.Process.cmdline)].count(True) == 2
            leader.send_signal(signum)
            break
    assert servers
    command.process.join()
    assert command.process.exitcode != 0
    _, left = psutil.wait_procs(servers, timeout=300)
    assert not left
    code, printed = start("train", str(config), environment=environment, output=tmp_path / "second.txt").end()
    assert code in (0, 3), printed
    assert "rollout servers: started 2" in printed
    assert not list(folder.glob("services/rollout-server-*"))
    assert not files_with(PREFIX.encode(), folder, home)
