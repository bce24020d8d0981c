"""A Prefect server on this machine, shared by the runs that need one and stopped by the last of them.

An ephemeral server loses task records when its process exits; this one is a process of its own. Every user
holds a shared lock, which the kernel frees even when a run is killed; whoever can take it alone was the last.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo.artifacts import storage_errors
from grpo.databases import exclusive, is_database, shown, upgrade_tracking
from grpo.errors import ConfigError

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Servers that this process started, by process id."""


def create_databases(home: Path) -> None:
    """Create or migrate the databases in which both services keep their records; a server would do it at its start.

    From nothing it takes Prefect ten seconds and MLflow two, which belong to an installation, not to every first run.
    Services that run elsewhere look after their own. Raises `ConfigError` when a database cannot be made.
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
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except ConnectionError as error:
            raise ConfigError(f"Prefect's database cannot be used: {error}") from error
        if done.returncode:
            raise ConfigError(f"Prefect's database {shown(records)} cannot be made:\n{done.stdout.strip()[-2000:]}")


@contextmanager
def prefect_server(home: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Serve Prefect's API while the block runs; `meanwhile` is called before it, while a new server starts.

    It is the server that PREFECT_API_URL names, else a running one of this home, else a new one.
    Raises `ConfigError` when the port belongs to another program.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        meanwhile()
        yield url
        return
    with storage_errors(str(home)):
        home.mkdir(parents=True, exist_ok=True)
        users = os.open(home / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        starting = os.open(home / "server.starting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        url = os.environ["PREFECT_API_URL"] = running_server(home) or _start(home)
        meanwhile()
        _await(f"{url}/health", _children.get(_pid(home)), log=home / "server.log")
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield url
    finally:
        _send_logs()
        os.environ.pop("PREFECT_API_URL", None)
        fcntl.flock(starting, fcntl.LOCK_EX)
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _stop(home)
        os.close(users)
        os.close(starting)


@contextmanager
def mlflow_server(home: Path) -> Iterator[str]:
    """Serve MLflow's pages on loopback while the block runs."""
    port = int(os.environ["GRPO_MLFLOW_PORT"])
    if not port_is_free("127.0.0.1", port):
        raise ConfigError(f"port {port} on 127.0.0.1 is in use by another program; set GRPO_MLFLOW_PORT")
    url = f"http://127.0.0.1:{port}"
    store = os.environ["MLFLOW_TRACKING_URI"]
    arguments = ["server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store, "--workers", "1"]
    with (home / "mlflow.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *arguments, "--artifacts-destination", str(home / "mlartifacts")],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _await(f"{url}/health", process, log=home / "mlflow.log")
        yield url
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _send_logs() -> None:
    """Let what was logged reach the server before it goes."""
    if (handlers := sys.modules.get("prefect.logging.handlers")) is not None:
        handlers.APILogWorker.drain_all(timeout=_STOP_TIMEOUT_S)


def _record(home: Path) -> Path:
    return home / "server.json"


def _pid(home: Path) -> int:
    return int(json.loads(_record(home).read_text(encoding="utf-8"))["pid"])


def running_server(home: Path) -> str | None:
    """Address of the server that an earlier run of this home left, if it still answers."""
    try:
        record = json.loads(_record(home).read_text(encoding="utf-8"))
        os.kill(record["pid"], 0)
    except (OSError, ValueError, KeyError):
        return None
    return str(record["url"]) if _answers(f"{record['url']}/health") else None


def _start(home: Path) -> str:
    host, port = os.environ["PREFECT_SERVER_API_HOST"], int(os.environ["PREFECT_SERVER_API_PORT"])
    url = f"http://{host}:{port}/api"
    if not port_is_free(host, port):
        raise ConfigError(
            f"port {port} on {host} is in use by another program; set PREFECT_SERVER_API_PORT to a free port, "
            "or PREFECT_API_URL to a Prefect server that is running"
        )
    with (home / "server.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start"],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    _children[process.pid] = process
    _record(home).write_text(json.dumps({"pid": process.pid, "url": url}), encoding="utf-8")
    return url


def _await(url: str, process: subprocess.Popen[bytes] | None, *, log: Path) -> None:
    """Wait until a server answers; say where its log is if it does not. `process` is None for another run's server."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _answers(url):
        if process is not None and process.poll() is not None:
            raise ConfigError(f"the server of {url} ended with code {process.returncode} at start; see {log}")
        if time.monotonic() > deadline:
            if process is not None:
                process.terminate()
            raise TimeoutError(f"the server of {url} did not answer within {_START_TIMEOUT_S:.0f} s; see {log}")
        time.sleep(0.1)


def _stop(home: Path) -> None:
    """End the server, by force if it does not end by itself."""
    try:
        pid = _pid(home)
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError, KeyError):
        return
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        if pid in _children and _children[pid].poll() is not None:
            break
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if (child := _children.pop(pid, None)) is not None:
        child.wait()
    _record(home).unlink(missing_ok=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def port_is_free(host: str, port: int) -> bool:
    """Whether nothing listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0
