"""`grpo up` and `grpo down`: Prefect's server, MLflow's server, a worker for each pool, and their supervisor.

With `--serve` the server of a model is added. All are plain processes with their logs in `services` under the home.
None of them holds state of a run, so runs continue after `grpo down` and `grpo up`.
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

from grpo.config.serving import ServeConfig
from grpo.errors import ConfigError
from grpo.storage.locks import file_lock
from grpo_local.deployments import POOLS, deploy
from grpo_local.login import CLIENT, PASSWORD, SERVER, USERNAME, login
from grpo_local.managed_process import ManagedProcess, free_port
from grpo_local.servers import mlflow_server, mlflow_service, prefect_server, prefect_service
from grpo_local.serving import start_serving, stop_serving, supervised_server

_WORKER_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of the servers, and the folder of the logs."""

    prefect: str
    mlflow: str
    logs: Path
    model: str | None
    """Address of the server of a model. None if none runs."""


def worker_name(home: Path, pool: str) -> str:
    """Name of the worker of a pool. Its runs have it as a label, and each home of a machine has another one."""
    return f"{pool}@{socket.gethostname()}-{hashlib.sha256(bytes(home.resolve())).hexdigest()[:8]}"


def worker_service(home: Path, pool: str, *, prefect_url: str, mlflow_url: str) -> ManagedProcess:
    """The worker process of one pool."""
    port = free_port()
    return ManagedProcess(
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


def up(home: Path, deployments: Path, served: ServeConfig | None = None) -> Addresses:
    """Start the missing processes, create pools and limits, and deploy. Processes that run already stay as they are.

    `served` has the settings of a model to serve as well. Raises `ConfigError` if a port is taken, a process ends at
    its start, a deployment is refused, or another model is served already.
    """
    names = ("PREFECT_API_URL", SERVER, CLIENT, "MLFLOW_TRACKING_URI", USERNAME, PASSWORD)
    servers = {name: os.environ.get(name) for name in names}
    with _exclusive(home), ExitStack() as users:
        mlflow: list[str] = []
        prefect = users.enter_context(
            prefect_server(
                home,
                for_pages=True,
                while_starting=lambda: mlflow.append(users.enter_context(mlflow_server(home))),
            )
        )
        deploy(deployments)
        supervisor = supervisor_service(home, servers)
        supervisor.start()
        for pool in POOLS:
            _wait_for(worker_service(home, pool, prefect_url=prefect, mlflow_url=mlflow[0]), supervisor)
        if served is not None:
            start_serving(home, served, prefect_url=prefect, mlflow_url=mlflow[0])
        server = supervised_server(home, prefect_url=prefect, mlflow_url=mlflow[0])
        return Addresses(
            prefect=prefect.removesuffix("/api"),
            mlflow=mlflow[0],
            logs=supervisor.log.parent,
            model=None if server is None else server.url,
        )


def down(home: Path) -> list[str]:
    """Stop the stack. Interrupted runs continue after the next `up`. Returns remarks about processes that still run.

    Workers are killed, because on SIGTERM they would wait for their runs, or report them as crashed. The server of a
    model ends its running turns first.
    """
    with _exclusive(home):
        supervisor_service(home, {}).stop()
        stop_serving(home)
        workers = {pool: worker_service(home, pool, prefect_url="", mlflow_url="") for pool in POOLS}
        for worker in workers.values():
            worker.stop(at_once=True)
        prefect = prefect_service(home)
        if "PREFECT_API_URL" not in os.environ and (url := prefect.address()) is not None:
            os.environ.update({"PREFECT_API_URL": url, CLIENT: login(home, "prefect")})
        try:
            if "PREFECT_API_URL" in os.environ:
                _reschedule(home)
        finally:  # also if Prefect does not answer
            in_use = [server.name for server in (mlflow_service(home), prefect) if not server.stop_if_unused()]
        return [f"another grpo command uses {name}, which stops when that command ends" for name in in_use]


def _reschedule(home: Path) -> None:
    """Let the next workers continue the runs of the workers of this home, which have been killed."""
    from prefect import get_client

    from grpo_local.workers.recovery import reschedule_lost_runs

    with get_client(sync_client=True) as client:
        for pool in POOLS:
            reschedule_lost_runs(client, pool, worker_name(home, pool), worker_dead=True)


def running_services(home: Path) -> dict[str, bool]:
    """Each process of the stack, with True if it runs."""
    workers = [worker_service(home, pool, prefect_url="", mlflow_url="") for pool in POOLS]
    services = [prefect_service(home), mlflow_service(home), supervisor_service(home, {}), *workers]
    if (server := supervised_server(home, prefect_url="", mlflow_url="")) is not None:
        services.append(server)
    return {service.name: service.process() is not None for service in services}


def supervisor_service(home: Path, environment: dict[str, str | None]) -> ManagedProcess:
    """The process that supervises the other processes."""
    return ManagedProcess(name="supervisor", home=home, arguments=("grpo_local.supervisor",), environment=environment)


def _wait_for(worker: ManagedProcess, supervisor: ManagedProcess) -> None:
    """Wait until the supervisor has started this worker and it answers."""
    deadline = time.monotonic() + _WORKER_TIMEOUT_S
    while worker.address() is None:
        if supervisor.process() is None:
            raise ConfigError(f"the supervisor ended at its start. See {supervisor.log}")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{worker.name} did not answer in {_WORKER_TIMEOUT_S:g} s. See {worker.log} and {supervisor.log}"
            )
        time.sleep(0.2)


def _exclusive(home: Path) -> FileLock:
    """Lock that prevents concurrent calls of up and down."""
    return file_lock(home / "services" / "stack.lock")
