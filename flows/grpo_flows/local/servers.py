"""Prefect's and MLflow's servers on this machine, shared by their runs and stopped by the last.

An ephemeral Prefect server loses task records when its process exits; this one is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo.errors import ConfigError
from grpo.storage.credentials import masked
from grpo.storage.databases import exclusive, is_database, upgrade_tracking
from grpo.storage.files import storage_errors
from grpo_flows.local.login import CLIENT, ORIGINS, SERVER, login
from grpo_flows.local.service import Service

_SEND_TIMEOUT_S = 10.0


def migrate_databases(home: Path) -> None:
    """Create or migrate the databases of both services, which a server would do at its start.

    A new database takes Prefect ten seconds and MLflow two: work for an installation, not for every first run. Servers
    on other machines migrate their own. Raises `ConfigError` for a database that cannot be created.
    """
    with storage_errors(str(home)):
        home.mkdir(parents=True, exist_ok=True)
    tracking = os.environ["MLFLOW_TRACKING_URI"]
    if is_database(tracking):
        upgrade_tracking(tracking)
    if "PREFECT_API_URL" not in os.environ:
        command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
        records = os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite:///{home / 'prefect' / 'prefect.db'}")
        try:
            with exclusive(records.replace("+aiosqlite", "")):
                process = subprocess.run(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
                )
        except ConnectionError as error:
            raise ConfigError(f"Prefect's database cannot be used: {error}") from error
        if process.returncode:
            output = masked(process.stdout.strip()[-2000:], known=records)
            raise ConfigError(f"Prefect's database {masked(records)} cannot be made:\n{output}")


def prefect_service(home: Path) -> Service:
    """Prefect's server of this home; started with the login in the environment."""
    host, port = os.environ["PREFECT_SERVER_API_HOST"], int(os.environ["PREFECT_SERVER_API_PORT"])
    origins = ",".join(f"http://{name}:{port}" for name in dict.fromkeys((host, "127.0.0.1", "localhost")))
    return Service(
        name="prefect",
        home=home,
        arguments=("grpo_flows.local.api",),
        host=host,
        port=port,
        path="/api",
        remedy="set PREFECT_SERVER_API_PORT to a free port, or PREFECT_API_URL to a Prefect server that is running",
        environment={ORIGINS: os.environ.get(ORIGINS, origins)},
    )


def mlflow_service(home: Path) -> Service:
    """MLflow's server of this home, with the same artifact folder as a client that opens the database itself."""
    port, files = int(os.environ["GRPO_MLFLOW_PORT"]), home / "mlartifacts"
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--workers", "1", "--artifacts-destination", str(files))
    return Service(
        name="mlflow",
        home=home,
        arguments=("mlflow", "server", *arguments, "--default-artifact-root", files.as_uri()),
        port=port,
        remedy="set GRPO_MLFLOW_PORT to a free port",
        environment={"MLFLOW_BACKEND_STORE_URI": os.environ["MLFLOW_TRACKING_URI"]},  # passwords are not arguments
    )


def running_prefect_server(home: Path) -> str | None:
    """Address of the Prefect server that PREFECT_API_URL names or that runs in this home; None without one."""
    return os.environ.get("PREFECT_API_URL") or prefect_service(home).address()


@contextmanager
def prefect_server(home: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Provide a Prefect server while the block runs; `meanwhile` is called first, while a new server starts.

    It is the server that PREFECT_API_URL names, with the login of PREFECT_API_AUTH_STRING, else a running one of this
    home, else a new one, with the login of the home. Raises `ConfigError` for a port of another program.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        meanwhile()
        yield url
        return

    def started(url: str) -> None:
        os.environ["PREFECT_API_URL"] = url  # a running server may have another port than a new one
        meanwhile()

    with prefect_environment(home), prefect_service(home).shared(meanwhile=started) as url:
        try:
            yield url
        finally:
            _send_logs()


@contextmanager
def prefect_environment(home: Path) -> Iterator[None]:
    """Set the address and login of this home's server while the block runs: Prefect reads them once, at import."""
    before = {name: os.environ.get(name) for name in ("PREFECT_API_URL", SERVER, CLIENT)}
    os.environ[SERVER] = os.environ[CLIENT] = login(home)
    os.environ["PREFECT_API_URL"] = prefect_service(home).url
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def mlflow_server(home: Path) -> Iterator[str]:
    """Serve MLflow on loopback while the block runs, or yield the address of the server that is configured."""
    if (url := os.environ["MLFLOW_TRACKING_URI"]).startswith("http"):
        yield url
        return
    with mlflow_service(home).shared() as url:
        yield url


def _send_logs() -> None:
    """Send the remaining logs before the server stops."""
    if (handlers := sys.modules.get("prefect.logging.handlers")) is not None:
        handlers.APILogWorker.drain_all(timeout=_SEND_TIMEOUT_S)
