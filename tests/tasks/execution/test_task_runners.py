"""Shards on the processes of a cluster of Dask or Ray."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Literal

import dask
import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from distributed import Client, LocalCluster

from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.errors import ConfigError
from grpo.storage.locks import scratch_path
from grpo_flows.train import train
from grpo_tasks.execution import ray_cluster
from grpo_tasks.execution.task_runners import shard_runner
from tests.doubles import short_run
from tests.processes import each, family, listening

OWN = """
import os
from pathlib import Path

from grpo.environments.support_desk.desk import SupportDesk


class MyDesk(SupportDesk):
    def __init__(self, players: str):
        super().__init__()
        self.players = Path(players)

    async def reset(self, scenario=None, *, seed=None):
        (self.players / str(os.getpid())).touch()
        return await super().reset(scenario, seed=seed)


def my_reward(turns):
    (Path(__file__).parent / "scorers" / str(os.getpid())).touch()
    return 1 / (1 + len(turns[-1].content))


my_reward.probed = False
"""
"""An environment and a reward of one's own, which note the processes that play and score."""


@pytest.mark.parametrize("runner", ["dask", "ray"])
def test_a_runner_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, runner: Literal["dask", "ray"]):
    """The error says what to install, and what to set otherwise."""
    monkeypatch.setitem(sys.modules, f"prefect_{runner}.task_runners", None)
    monkeypatch.delitem(sys.modules, "grpo_tasks.execution.ray_cluster", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install 'grpo-agent-framework\[{runner}\]', or set it to threads"):
        shard_runner(RolloutSettings(runner=runner))


def _rows(folder: Path) -> pa.Table:
    """Every episode of the tables in a folder, all columns, in an order that does not depend on who played it when."""
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))
    table = table.replace_schema_metadata(None)
    return table.sort_by([(name, "ascending") for name in ("policy_hash", "scenario_id", "sample", "seed")])


def _holder(locks: Path) -> int | None:
    """Id of another process that holds a lock in a folder, as the kernel lists it: a look costs no more than a read."""
    numbers = {path.stat().st_ino for path in locks.glob("*")}
    for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
        kind, pid, file = (line.split()[place] for place in (1, 4, 5))  # 1: FLOCK ADVISORY WRITE 4711 fe:00:815 0 EOF
        if kind == "FLOCK" and int(file.rpartition(":")[2]) in numbers and int(pid) != os.getpid():
            return int(pid)
    return None


@contextmanager
def _a_killed_player(locks: Path) -> Iterator[list[int]]:
    """While the block runs, kill the first other process that holds the lock of a stage; yields its id."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not killed and not over.wait(0.05):
            if (holder := _holder(locks)) is not None:
                os.kill(holder, signal.SIGKILL)
                killed.append(holder)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


@pytest.mark.filterwarnings("ignore")
def test_shards_go_to_the_cluster_at_the_address():
    """The workers of a cluster that is there already, and no others."""
    with LocalCluster(n_workers=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None) as ours:
        settings = RolloutSettings(runner="dask", dask_address=ours.scheduler_address)
        with shard_runner(settings) as runner:
            assert [*runner.client.scheduler_info()["workers"]] == [worker.address for worker in ours.workers.values()]


def _listening_ports() -> set[int]:
    """Ports at which this process and its children listen."""
    return {port for _, port in listening(family())}


@pytest.mark.filterwarnings("ignore")
def test_another_program_of_this_machine_runs_nothing_on_the_cluster():
    """Whoever reaches the port of a Dask scheduler may run code; here it needs the certificate of the cluster."""
    before = _listening_ports()
    with shard_runner(RolloutSettings(runner="dask", workers=1)) as runner:
        assert runner.client.submit(sum, [1, 2]).result() == 3
        address = runner.client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        for stranger in (address, address.replace("tls:", "tcp:")):
            with pytest.raises((OSError, TypeError)), Client(stranger, timeout=3):
                pass
        ports = _listening_ports() - before
        assert int(address.rpartition(":")[2]) in ports
        for port, path in itertools.product(ports, ("health", "metrics", "json/counts.json", "info/main/workers.html")):
            with suppress(httpx.TransportError):
                assert httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=10).status_code == 404


def test_a_ray_cluster_that_the_run_has_not_started_is_not_used(monkeypatch: pytest.MonkeyPatch):
    """For example of a notebook that has called `ray.init()`: it may listen on every interface."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with (
        pytest.raises(ConfigError, match=r"connection to another Ray cluster.*call ray.shutdown\(\)"),
        shard_runner(RolloutSettings(runner="ray", ray_address="127.0.0.1:1")),
    ):
        raise AssertionError("it is used")


def test_a_folder_too_long_for_rays_sockets_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A socket's address has at most 107 characters, of which Ray's own names take 64."""
    monkeypatch.setattr("grpo_tasks.execution.ray_cluster.user_temp_folder", lambda: tmp_path / ("long" * 10))
    with (
        pytest.raises(ConfigError, match=r"set TMPDIR to a folder with a path that is .* characters shorter"),
        shard_runner(RolloutSettings(runner="ray")),
    ):
        raise AssertionError("it is used")


@pytest.mark.parametrize(("failures", "tries"), [(2, 3), (3, 3)])
def test_ray_that_starts_too_slowly_is_started_again(monkeypatch: pytest.MonkeyPatch, failures: int, tries: int):
    """A busy machine may need longer than the 30 seconds that Ray waits. The third failure is the error."""
    starts: list[str] = []

    def init(address: str, **_: object) -> None:
        starts.append(address)
        if len(starts) <= failures:
            raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(ray, "init", init)
    with nullcontext() if failures < tries else pytest.raises(ConnectionError, match="in any of 3 tries"):
        ray_cluster._start("/tmp/ray", workers=1)
    assert len(starts) == 3


def test_a_ray_address_where_nothing_answers_is_named():
    """At once, with the remedy."""
    with (
        pytest.raises(ConfigError, match=r"127\.0\.0\.1:1 cannot be used: .*refused.*`ray status`"),
        shard_runner(RolloutSettings(runner="ray", ray_address="127.0.0.1:1")),
    ):
        pass


@pytest.fixture
def ray_address(server: str) -> Iterator[str]:
    """Address of a cluster of one worker that a run of this process has started."""
    with shard_runner(RolloutSettings(runner="ray", workers=1)):
        yield ray.get_runtime_context().gcs_address


_CLIENT = """
import sys

import ray

from grpo.config.rollout import RolloutSettings
from grpo_tasks.execution.task_runners import shard_runner

with shard_runner(RolloutSettings(runner="ray", ray_address=sys.argv[1])):
    print("computed", ray.get(ray.remote(lambda: 3).remote()))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_answers_only_clients_with_its_token(ray_address: str, server: str):
    """Another program of this machine needs the token. All ports are on loopback, and show strangers only health."""
    assert "RAY_AUTH_TOKEN" not in os.environ
    environments = dict(each(family(), lambda process: (process.name(), process.environ())))
    tokens = {"own": environments["raylet"]["RAY_AUTH_TOKEN"], "wrong": "0" * 64, "none": ""}
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else a client takes 127.0.0.1 for the public address
    clients = {
        name: subprocess.Popen(
            [sys.executable, "-c", _CLIENT, ray_address],
            env={**os.environ, **loopback, "RAY_AUTH_MODE": "token" if value else "disabled", "RAY_AUTH_TOKEN": value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, value in tokens.items()
    }
    printed = {name: client.communicate(timeout=240)[0] for name, client in clients.items()}
    assert "computed 3" in printed["own"], printed["own"]
    for name in ("wrong", "none"):
        assert "ConfigError: rollout.ray_address" in printed[name], printed[name]
    opened = listening(family())
    assert {address.removeprefix("::ffff:") for address, _ in opened} == {"127.0.0.1"}
    ports = {port for _, port in opened}
    assert int(ray_address.rpartition(":")[2]) in ports
    ports.remove(int(server.split(":")[2].partition("/")[0]))
    paths = ("", "api/jobs", "api/job_agent/jobs/", "api/logs/file", "nodes")
    with ThreadPoolExecutor(16) as threads:  # a port that does not speak HTTP answers no request
        answers = threads.map(lambda asked: _answer(*asked), itertools.product(ports, paths))
    for status, text in filter(None, answers):
        assert status in (401, 404) or text.startswith("# HELP")  # numbers of Prometheus


def _answer(port: int, path: str) -> tuple[int, str] | None:
    """Status and text of an answer, or None if there is none."""
    with suppress(httpx.TransportError):
        response = httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=10)
        return response.status_code, response.text
    return None


_RUN = """
import time

from grpo.config.rollout import RolloutSettings
from grpo_tasks.execution.executor import stage_executor

with stage_executor(RolloutSettings(runner="ray", workers=1)):
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_is_ended_leaves_no_process_of_ray_and_no_file():
    """After SIGTERM at once. After SIGKILL the folder stays until the next cluster of this user starts."""
    with tempfile.TemporaryDirectory() as temporary:  # short, because Ray keeps sockets in it
        for signum in (signal.SIGTERM, signal.SIGKILL):
            command, variables = [sys.executable, "-c", _RUN], {**os.environ, "TMPDIR": temporary}
            with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as run:
                assert run.stdout is not None
                assert run.stdout.readline() == "started\n"
                started = psutil.Process(run.pid).children(recursive=True)
                assert {"raylet", "gcs_server"} <= {*each(started, psutil.Process.name)}
                run.send_signal(signum)
            assert run.returncode == (143 if signum == signal.SIGTERM else -signal.SIGKILL)
            assert psutil.wait_procs(started, timeout=240)[1] == []
            folders = [*Path(temporary).rglob("session_2*")]
            assert len(folders) == (signum == signal.SIGKILL)
        with scratch_path(folders[0].parents[1]):
            assert not folders[0].exists()


@dataclass(frozen=True, kw_only=True)
class Played:
    """Episodes of a run as they were rolled out and as they were scored, and the processes that did it."""

    rolled_out: pa.Table
    scored: pa.Table
    players: set[int]
    scorers: set[int]


class Runs:
    """Runs of one short config, each with a store of its own, on different runners."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "desk_of_mine.py").write_text(OWN)

    def play(self, runner: str, workers: int = 2) -> Played:
        """A run of 4 shards per iteration."""
        players, scorers = self.folder / runner, self.folder / "scorers"
        players.mkdir()
        shutil.rmtree(scorers, ignore_errors=True)
        scorers.mkdir()
        plan = short_run(
            self.folder,
            name=runner,
            import_from=str(self.folder),
            store=str(players / "store"),
            scenarios={"limit": 6},
            environment={"kind": "python", "object": "desk_of_mine:MyDesk", "options": {"players": str(players)}},
            reward=[{"kind": "python", "object": "desk_of_mine:my_reward", "weight": 1.0}],
            rollout={"scenarios": 4, "shards": 4, "runner": runner, "workers": workers},
            training={"iterations": 1},
        )
        train(PipelineConfig.model_validate(plan))
        return Played(
            rolled_out=_rows(players / "store" / "rollout"),
            scored=_rows(players / "store" / "scored"),
            players={int(path.name) for path in players.glob("[0-9]*")},
            scorers={int(path.name) for path in scorers.iterdir()},
        )


@pytest.fixture(scope="module")
def runs(server: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def of_threads(runs: Runs) -> Played:
    """Episodes that this process has played and scored."""
    played = runs.play("threads")
    assert played.players == played.scorers == {os.getpid()}
    return played


def _assert_the_same(played: Played, expected: Played) -> None:
    assert played.players > {os.getpid()}  # which tries the environment before the run
    assert played.scorers - {os.getpid()}, "a process of the cluster scores"
    for rows, of_threads in ((played.rolled_out, expected.rolled_out), (played.scored, expected.scored)):
        assert rows.num_rows == 4 * 4 + 2 * 6
        names = [name for name in of_threads.column_names if name != "sampler_logprobs"]
        assert rows.select(names).equals(of_threads.select(names))
        here, there = (np.array(table["sampler_logprobs"].combine_chunks().flatten()) for table in (rows, of_threads))
        # the last digit depends on where a processor's library finds its operands
        assert np.abs(here - there).max() < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_that_loses_a_worker_plays_and_scores_the_same_rows(runs: Runs, of_threads: Played, home: Path):
    """4 shards on 2 workers, one killed while it holds a shard and its lock: episodes and rewards are the same."""
    forkserver.set_forkserver_preload(
        ["torch", "transformers.modeling_utils", "sklearn", "mlflow.pyfunc", "distributed", "grpo_flows.train"]
    )
    forkserver.ensure_running()  # three workers that each import them would take a minute of a core
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        _a_killed_player(home / "locks") as killed,
    ):
        played = runs.play("dask")
    assert killed
    _assert_the_same(played, of_threads)


@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_that_loses_its_worker_plays_and_scores_the_same_rows(runs: Runs, of_threads: Played, home: Path):
    """4 shards on 1 worker, which is killed while it holds a shard and its lock: Ray starts another one."""
    with _a_killed_player(home / "locks") as killed:
        played = runs.play("ray", workers=1)
    assert killed
    _assert_the_same(played, of_threads)
