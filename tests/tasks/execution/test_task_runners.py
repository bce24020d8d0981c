"""Shards on the processes of a Dask cluster."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import dask
import httpx
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

from grpo.config.pipeline import PipelineConfig
from grpo.config.rollout import RolloutSettings
from grpo.errors import ConfigError
from grpo_flows.train import train
from grpo_tasks.execution.task_runners import shard_runner
from tests.doubles import changed


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    """The error says what to install, and what to set otherwise."""
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(ConfigError, match=r"pip install 'grpo-agent-framework\[dask\]', or set it to threads"):
        shard_runner(RolloutSettings(runner="dask"))


def _rows(store: Path) -> pa.Table:
    """Every rolled-out episode in a store, all columns, in an order that does not depend on who played it when."""
    table = pa.concat_tables(pq.read_table(path) for path in sorted((store / "rollout").glob("*.parquet")))
    table = table.replace_schema_metadata(None)
    return table.sort_by([(name, "ascending") for name in ("policy_hash", "scenario_id", "sample", "seed")])


def _holder(locks: Path) -> int | None:
    """Id of another process that holds a lock in a folder, as the kernel lists it: a look costs no more than a read."""
    numbers = {path.stat().st_ino for path in locks.glob("*")}
    for line in Path("/proc/locks").read_text().splitlines():
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
        while not killed and not over.wait(0.005):
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


@pytest.mark.filterwarnings("ignore")
def test_another_program_of_this_machine_runs_nothing_on_the_cluster():
    """Whoever reaches the port of a Dask scheduler may run code; here it needs the certificate of the cluster."""
    with shard_runner(RolloutSettings(runner="dask", workers=1)) as runner:
        assert runner.client.submit(sum, [1, 2]).result() == 3
        address = runner.client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        for stranger in (address, address.replace("tls:", "tcp:")):
            with pytest.raises((OSError, TypeError)), Client(stranger, timeout=3):
                pass
        mine = psutil.Process()
        sockets = [one for each in (mine, *mine.children(recursive=True)) for one in each.net_connections(kind="tcp")]
        ports = {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
        assert int(address.rpartition(":")[2]) in ports
        for port, path in itertools.product(ports, ("health", "metrics", "json/counts.json", "info/main/workers.html")):
            with suppress(httpx.TransportError):
                assert httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=10).status_code == 404


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_loses_a_worker_plays_the_same_rows(desk_config: dict[str, Any], home: Path, tmp_path: Path):
    """4 shards on 2 workers, one killed while it holds a shard and its lock: the episodes are those of one process."""

    def run(runner: str) -> pa.Table:
        plan = changed(
            desk_config,
            name=runner,
            store=str(tmp_path / runner),
            scenarios={"limit": 6},
            rollout={"scenarios": 4, "shards": 4, "runner": runner},
            training={"iterations": 1},
        )
        train(PipelineConfig.model_validate(plan))
        return _rows(tmp_path / runner)

    alone = run("threads")
    forkserver.set_forkserver_preload(["torch", "transformers.modeling_utils", "sklearn", "mlflow.pyfunc"])
    forkserver.ensure_running()  # three workers that each import them would take a minute of a core
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        _a_killed_player(home / "locks") as killed,
    ):
        clustered = run("dask")
    assert killed
    assert clustered.num_rows == 4 * 4 + 2 * 6
    names = [name for name in alone.column_names if name != "sampler_logprobs"]
    assert clustered.select(names).equals(alone.select(names))
    here, there = (np.array(table["sampler_logprobs"].combine_chunks().flatten()) for table in (alone, clustered))
    assert np.abs(here - there).max() < 1e-5  # the last digit depends on where a processor's library finds its operands
