"""Real servers for tests: processes of their own on free ports of loopback, stopped when the block ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_START_S, _STOP_S = 120.0, 20.0


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prefect_served(environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Serve Prefect's API and pages; gives the address of the API."""
    port = str(free_port())  # by the environment: with --port its pages ask port 4200
    settings = {**environment, "PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": port}
    url = f"http://127.0.0.1:{port}/api"
    with served(["prefect", "server", "start"], settings, log, f"{url}/health"):
        yield url


@contextmanager
def mlflow_served(environment: Mapping[str, str], log: Path, *, database: str, artifacts: Path) -> Iterator[str]:
    """Serve MLflow's tracking and registry, and hand artifacts through; gives its address."""
    port = str(free_port())
    settings = {
        **environment,
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": str(artifacts),
        "MLFLOW_HOST": "127.0.0.1",
        "MLFLOW_PORT": port,
        "MLFLOW_WORKERS": "1",
    }
    url = f"http://127.0.0.1:{port}"
    with served(["mlflow", "server"], settings, log, f"{url}/health"):
        yield url


@contextmanager
def served(module: list[str], environment: Mapping[str, str], log: Path, health: str) -> Iterator[None]:
    """Run `python -m …` while the block runs, which begins when the process answers at the address `health`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=dict(environment),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await(health, process, log)
        yield
    finally:
        for _ in range(2):  # a worker that is asked once waits for its next poll
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.2)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        assert process.poll() is None, f"{url} ended at start:\n{log.read_text()[-4000:]}"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        assert time.monotonic() < deadline, f"{url} does not answer:\n{log.read_text()[-4000:]}"
        time.sleep(0.2)
