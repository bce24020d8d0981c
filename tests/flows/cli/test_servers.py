"""Databases, pages and shutdown of the servers that commands start."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from grpo_local.login import login, login_file
from grpo_local.managed_process import port_is_free
from grpo_local.servers import mlflow_server
from tests.places import ROOT
from tests.ports import own_port


def test_databases_are_created_once(tmp_path: Path):
    """`grpo migrate` without databases creates the tables of both services; a second call keeps them."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))},
        "GRPO_HOME": str(tmp_path / "home"),
    }
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "grpo_cli", "migrate"], env=environment, cwd=ROOT, timeout=300, check=True
        )
    tables = {}
    for path in (tmp_path / "home" / "prefect" / "prefect.db", tmp_path / "home" / "mlflow.db"):
        with closing(sqlite3.connect(path)) as database:
            tables[path.name] = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert {"flow_run", "task_run", "artifact"} <= tables["prefect.db"]
    assert {"runs", "registered_models"} <= tables["mlflow.db"]


def test_the_pages_of_mlflow_have_telemetry_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The server disables it in the browser, too."""
    monkeypatch.setenv("GRPO_MLFLOW_PORT", str(own_port()))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow_server(tmp_path) as url:
        user, _, password = login(tmp_path, "mlflow").partition(":")
        answer = httpx.get(f"{url}/ajax-api/3.0/mlflow/ui-telemetry", auth=(user, password), timeout=240).json()
    assert answer["disable_ui_telemetry"] is True


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_the_pages_end_on_a_signal(tmp_path: Path, signum: signal.Signals):
    """`grpo ui` says where the passwords of both are, and leaves no server behind, also if its terminal closes."""
    ports = own_port(), own_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))},
        "GRPO_HOME": str(tmp_path),
        "PREFECT_SERVER_API_PORT": str(ports[0]),
        "GRPO_MLFLOW_PORT": str(ports[1]),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "grpo_cli", "ui"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses, *hints = (process.stdout.readline() for _ in range(3))
        taken = [not port_is_free("127.0.0.1", port) for port in ports]
        process.send_signal(signum)
        process.wait(timeout=300)
    assert taken == [True, True]
    assert str(ports[0]) in addresses
    assert str(login_file(tmp_path, "prefect")) in hints[0]
    assert "Until it is given, the page shows no runs" in hints[0]
    assert str(login_file(tmp_path, "mlflow")) in hints[1]
    assert all(port_is_free("127.0.0.1", port) for port in ports)
