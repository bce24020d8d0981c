"""The stack of one machine: Prefect's server, MLflow's server, a worker for each pool, and a supervisor of them.

All are plain processes with their logs in `services` under the home. Nothing of a run is in any of them: down and up
again, and it goes on.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from flows.local.deployments import POOLS, deploy
from flows.local.login import CLIENT, SERVER, login
from flows.local.servers import mlflow_server, mlflow_service, prefect_server, prefect_service
from flows.local.service import Service, free_port
from grpo.errors import ConfigError
from grpo.storage.locks import file_lock

_WORKER_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a stack is to be found."""

    prefect: str
    mlflow: str
    logs: Path


def worker_name(home: Path, pool: str) -> str:
    """Name of the worker of a pool, by which the runs that it took are known; each home of a machine has its own."""
    return f"{pool}@{socket.gethostname()}-{hashlib.sha256(bytes(home.resolve())).hexdigest()[:8]}"


def worker_service(home: Path, pool: str, *, prefect_url: str, mlflow_url: str) -> Service:
    """The worker of one pool."""
    port = free_port()
    return Service(
        name=f"worker-{pool}",
        home=home,
        arguments=(
            *("prefect", "worker", "start", "--with-healthcheck", "--type", "process"),
            *("--pool", pool, "--name", worker_name(home, pool)),
        ),
        port=port,
        environment={
            "PREFECT_API_URL": prefect_url,
            "PREFECT_LOGGING_LEVEL": "INFO",
            "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
            "PREFECT_WORKER_WEBSERVER_PORT": str(port),
            "MLFLOW_TRACKING_URI": mlflow_url,
        },
    )


def up(home: Path, deployments: Path) -> Addresses:
    """Start what does not run yet, make pools and limits, and deploy; what runs is left alone.

    Raises `ConfigError` where a port is taken, a process ends at its start or a deployment cannot be made.
    """
    servers = {name: os.environ.get(name) for name in ("PREFECT_API_URL", SERVER, CLIENT, "MLFLOW_TRACKING_URI")}
    with _one_at_a_time(home), ExitStack() as users:
        mlflow: list[str] = []
        prefect = users.enter_context(
            prefect_server(home, meanwhile=lambda: mlflow.append(users.enter_context(mlflow_server(home))))
        )
        deploy(deployments)
        supervisor = supervisor_service(home, servers)
        supervisor.start()
        for pool in POOLS:
            _wait_for(worker_service(home, pool, prefect_url=prefect, mlflow_url=mlflow[0]), supervisor)
        return Addresses(prefect=prefect.removesuffix("/api"), mlflow=mlflow[0], logs=supervisor.log.parent)


def down(home: Path) -> list[str]:
    """End the stack, and let runs that are under way go on after the next `up`; returns what still runs, and why.

    Workers are ended outright: asked to, they would wait for their runs, or report them as crashed.
    """
    with _one_at_a_time(home):
        supervisor_service(home, {}).stop()
        workers = {pool: worker_service(home, pool, prefect_url="", mlflow_url="") for pool in POOLS}
        for worker in workers.values():
            worker.stop(at_once=True)
        prefect = prefect_service(home)
        if "PREFECT_API_URL" not in os.environ and (url := prefect.address()) is not None:
            os.environ.update({"PREFECT_API_URL": url, CLIENT: login(home)})
        if "PREFECT_API_URL" in os.environ:
            from flows.local.recovery import put_back

            for pool in POOLS:
                put_back(pool, worker_name(home, pool), gone=True)
        return [
            f"{server.name} is used by another command, and ends with it"
            for server in (mlflow_service(home), prefect)
            if not server.stop_if_unused()
        ]


def supervisor_service(home: Path, environment: dict[str, str | None]) -> Service:
    """The process that looks after the others."""
    return Service(name="supervisor", home=home, arguments=("flows.local.supervisor",), environment=environment)


def _wait_for(worker: Service, supervisor: Service) -> None:
    """Wait until the supervisor has started this worker, and it answers."""
    deadline = time.monotonic() + _WORKER_TIMEOUT_S
    while worker.address() is None:
        if supervisor.process() is None:
            raise ConfigError(f"the supervisor ended at its start; see {supervisor.log}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{worker.name} did not answer; see {worker.log} and {supervisor.log}")
        time.sleep(0.2)


def _one_at_a_time(home: Path) -> FileLock:
    """Two calls of up and down do not get in each other's way."""
    return file_lock(home / "services" / "stack.lock")
