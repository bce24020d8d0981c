"""Processes of remote stages, forked by a real fork server: environment, sources, ends and exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import psutil
import pytest

from grpo.errors import ConfigError
from grpo_local.workers.fork_server import IDLE_MINUTES, PRELOADED, RUN, RUN_PREFIX
from grpo_local.workers.fork_servers import Forkable, ForkServers, forkable, idle_minutes
from grpo_local.workers.recovery import flow_run_processes
from tests import waiting
from tests.places import ROOT

until = partial(waiting.until, patience_s=300)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

_ENGINE = '''
"""In the place of Prefect's engine: what a stage does is its entrypoint."""
import os, sys

def _main(arguments):
    exec(arguments[0])
    return 0
'''
"""Imported instead of `prefect.flow_engine`, so that neither a server of Prefect nor PyTorch is needed."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with small modules in the places of the ones that a fork server imports."""
    folder = tmp_path / "project"
    for name in PRELOADED:
        path = folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        for package in path.parents:
            if package == folder:
                break
            (package / "__init__.py").touch()
    (folder / "prefect/flow_engine.py").write_text(_ENGINE)
    sources = ROOT / "flows" / "grpo_local"
    (folder / "grpo_local/workers").mkdir(parents=True)
    for package in ("grpo_local", "grpo_local/workers"):
        (folder / package / "__init__.py").touch()
    (folder / "grpo_local/workers/fork_server.py").write_text((sources / "workers/fork_server.py").read_text())
    (folder / "grpo_local/settings.py").write_text(
        f"import importlib\nLEARNER = {PRELOADED[2:]!r}\n"
        "def import_packages(*names):\n    for name in names: importlib.import_module(name)\n"
    )
    for path in folder.rglob("*.py"):
        os.utime(path, (0, 0))  # older than the server, which does not trust a file that is newer
    return folder


class Stages:
    """Stages of one worker in a project folder. Each runs a line of Python."""

    def __init__(self, project: Path, servers: ForkServers) -> None:
        self._project, self._servers = project, servers

    async def start(self, line: str, **variables: str) -> tuple[UUID, int, Callable[[], Awaitable[int]]]:
        """The run's id, the id of its process, and a function that waits for its exit code."""
        run = uuid.uuid4()
        given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self._project), **variables}
        environment = {**given, RUN: str(run), "PREFECT__FLOW_ENTRYPOINT": line}
        server, process = await self._servers.fork(str(self._project), environment)

        async def code() -> int:
            await server.wait(process)
            assert process.returncode is not None
            return process.returncode

        return run, process.pid, code

    async def run(self, line: str, **variables: str) -> int:
        """Exit code of a stage."""
        return await (await self.start(line, **variables))[2]()


@asynccontextmanager
async def _stages(project: Path) -> AsyncIterator[Stages]:
    servers = ForkServers(idle_minutes=5)
    try:
        yield Stages(project, servers)
    finally:
        await servers.close()


def _record(path: Path) -> str:
    """A line that writes down the process, its parent and what it sees."""
    return (
        f"import json; open({str(path)!r}, 'a').write(json.dumps([os.getpid(), os.getppid(), dict(os.environ), "
        "os.getcwd()]) + '\\n')"
    )


def _waits_for(path: Path) -> str:
    """Lines that end when the file is there."""
    return f"import time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)"


def _recorded(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_stage_has_a_process_of_its_own_from_one_server(project: Path, tmp_path: Path):
    """Two stages: two processes, one parent; each sees its own run, and nothing of the run before it."""

    async def play() -> None:
        async with _stages(project) as stages:
            line = _record(tmp_path / "seen")
            assert await stages.run(f"{line}; os.environ['LEFT'] = '1'; sys.modules['left'] = sys", A="1") == 0
            assert await stages.run(f"{line}; assert 'left' not in sys.modules", A="1") == 0

    anyio.run(play)
    first, second = _recorded(tmp_path / "seen")
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert first[2][RUN] != second[2][RUN]
    assert "LEFT" not in second[2]
    assert first[3] == str(project)


def test_a_run_with_another_environment_gets_another_server(project: Path, tmp_path: Path):
    """A changed secret is a changed environment; the third run has the first one's and so its server."""

    async def play() -> None:
        async with _stages(project) as stages:
            for secret in ("old", "new", "old"):
                assert await stages.run(_record(tmp_path / "seen"), AWS_SECRET_ACCESS_KEY=secret) == 0

    anyio.run(play)
    runs = _recorded(tmp_path / "seen")
    assert [run[2]["AWS_SECRET_ACCESS_KEY"] for run in runs] == ["old", "new", "old"]
    assert runs[0][1] == runs[2][1] != runs[1][1]


def test_changed_sources_start_another_server(project: Path, tmp_path: Path):
    """A module that was imported changes between two runs: the second one runs the new version."""

    async def play() -> None:
        module = project / "grpo_flows/stage.py"
        line = f"import grpo_flows.stage as s; open({str(tmp_path / 'seen')!r}, 'a').write(getattr(s, 'V', '1'))"
        async with _stages(project) as stages:
            assert await stages.run(line) == 0
            module.write_text("V = '2'")
            os.utime(module, (1, 1))
            assert await stages.run(line) == 0

    anyio.run(play)
    assert (tmp_path / "seen").read_text() == "12"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
        ("import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30,) * 2); x = bytearray(2 << 30)", 1),
    ],
)
def test_a_stage_that_ends_badly_costs_only_itself(project: Path, line: str, code: int):
    """Its exit code is known, and the next stage runs."""

    async def play() -> None:
        async with _stages(project) as stages:
            assert await stages.run(line) == code
            assert await stages.run("pass") == 0

    anyio.run(play)


def test_the_processes_of_a_run_are_found_by_its_id(project: Path):
    """Also its children; the server itself belongs to no run. A signal to the group ends all of them."""

    async def play() -> None:
        async with _stages(project) as stages:
            line = "import subprocess; subprocess.run(['sleep', '600'])"
            run, pid, code = await stages.start(line)
            server = psutil.Process(pid).parent()
            assert server is not None
            until("the child", lambda: len(flow_run_processes().get(run, ())) == 2)
            processes = flow_run_processes()
            assert server.pid not in {process.pid for group in processes.values() for process in group}
            assert pid in {process.pid for process in processes[run]}
            os.killpg(pid, signal.SIGKILL)
            assert await code() == -signal.SIGKILL
            until("the end of the child", lambda: run not in flow_run_processes())

    anyio.run(play)


def test_a_stage_that_is_waited_for_no_more_costs_only_itself(project: Path, tmp_path: Path):
    """Prefect cancels the wait if the cancellation of a run fails. The other stages of the server still end."""

    async def play() -> None:
        async with _stages(project) as stages:
            _, _, other = await stages.start(_waits_for(tmp_path / "go on"))
            _, pid, code = await stages.start("import time; time.sleep(600)")
            waiting = asyncio.create_task(code())  # type: ignore[arg-type]
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            os.kill(pid, signal.SIGKILL)
            with anyio.fail_after(240):
                assert await stages.run("sys.exit(7)") == 7
                (tmp_path / "go on").touch()
                assert await other() == 0

    anyio.run(play)


def test_a_worker_that_stops_while_a_server_starts_does_not_wait_for_it(project: Path):
    """Nothing would ever ask the server for a stage, and it ends by itself only after the idle time."""

    async def play() -> None:
        servers = ForkServers(idle_minutes=600)
        starting = asyncio.create_task(Stages(project, servers).start("pass"))
        while not servers._reading:
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        with anyio.fail_after(240):
            await servers.close()

    anyio.run(play)


def test_a_server_that_is_killed_is_replaced(project: Path, tmp_path: Path):
    """The run that is going on goes on; its exit code is unknown and counts as 1. The next run has a new server."""
    go_on = tmp_path / "go on"

    async def play() -> None:
        async with _stages(project) as stages:
            _, pid, code = await stages.start(_waits_for(go_on))
            server = psutil.Process(pid).parent()
            assert server is not None
            server.kill()
            server.wait()
            go_on.touch()
            assert await code() == 1
            assert await stages.run("pass") == 0

    anyio.run(play)


def test_a_server_ends_with_its_worker(project: Path, tmp_path: Path):
    """A worker that is killed cannot end it. It reads the end of its socket, and ends when its run has ended."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import anyio, os, sys\n"
        "from grpo_local.workers.fork_servers import ForkServers\n"
        "async def play():\n"
        f"    run = {{'PATH': os.environ['PATH'], 'PYTHONPATH': {str(project)!r}, {RUN!r}: '0' * 36,\n"
        "           'PREFECT__FLOW_ENTRYPOINT': 'import time; time.sleep(1)'}\n"
        f"    _, process = await ForkServers(idle_minutes=5).fork({str(project)!r}, run)\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "anyio.run(play)\n"
    )
    import subprocess

    path = os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks")))
    done = subprocess.run(
        [sys.executable, str(worker)], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    marked = str(project)

    def left() -> list[int]:
        return [
            p.pid for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("PYTHONPATH") == marked
        ]

    until("the end of the server", lambda: not left())


def test_a_server_without_a_stage_ends_by_itself(project: Path, tmp_path: Path):
    """After the idle time; the next run gets another one."""
    go_on = tmp_path / "go on"

    async def play() -> None:
        servers = ForkServers(idle_minutes=0.2 / 60)
        stages = Stages(project, servers)
        _, pid, code = await stages.start(_waits_for(go_on))
        server = psutil.Process(pid).parent()
        assert server is not None
        go_on.touch()
        assert await code() == 0
        with anyio.fail_after(300):
            while server.is_running():  # it is removed from the process table by the task that reads from it
                await anyio.sleep(0.05)
        assert await stages.run("pass") == 0
        await servers.close()

    anyio.run(play)


def _deployment(entrypoint: str, *steps: dict[str, Any]) -> Any:
    from prefect.client.schemas.responses import DeploymentResponse

    return DeploymentResponse(name="gpu", flow_id=uuid.uuid4(), entrypoint=entrypoint, pull_steps=list(steps))


def test_only_stages_in_a_folder_that_is_there_are_forked(tmp_path: Path):
    """Code that has to be fetched first, and flows of other kinds, start in fresh processes."""
    here = {"prefect.deployments.steps.set_working_directory": {"directory": str(tmp_path)}}
    clone = {"prefect.deployments.steps.git_clone": {"repository": "https://git.example/desk"}}
    stage = "grpo_flows.stage.run_stage"
    assert forkable(_deployment(stage, here)) == Forkable(folder=str(tmp_path), entrypoint=stage)
    assert forkable(_deployment("flows/grpo_flows/stage.py:run_stage", here)) is not None
    assert forkable(_deployment("grpo_flows.train.train", here)) is None
    assert forkable(_deployment(stage, clone)) is None
    assert forkable(_deployment(stage, clone, here)) is None
    assert forkable(_deployment(stage)) is None


def test_the_idle_time_is_a_number_and_zero_forks_nothing(monkeypatch: pytest.MonkeyPatch):
    """A word or a negative number is an error that names the variable."""
    for text in ("soon", "-1", "nan"):
        monkeypatch.setenv(IDLE_MINUTES, text)
        with pytest.raises(ConfigError, match=f"{IDLE_MINUTES} is '{text}'"):
            idle_minutes()
    monkeypatch.setenv(IDLE_MINUTES, "0")
    assert not ForkServers(idle_minutes=idle_minutes()).enabled
    assert RUN.startswith(RUN_PREFIX)
