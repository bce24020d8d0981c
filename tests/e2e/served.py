"""Real servers for tests, on free ports of loopback: `with served.shared() as address` starts and ends one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from grpo_local.login import CLIENT, HOSTS, ORIGINS, PASSWORD, SERVER, USERNAME
from grpo_local.managed_process import ManagedProcess
from grpo_local.servers import WITHOUT_BLOCKS
from tests.places import ROOT
from tests.ports import own_port

LOGIN = "grpo:login-of-a-container"
"""Of the servers that are started here as containers start them."""


def own_environment(home: Path, server: str) -> dict[str, str]:
    """Variables of a command with its own records and the Prefect server of the tests."""
    return {
        **os.environ,
        "GRPO_HOME": str(home),
        "PREFECT_API_URL": server,
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks"))),
        "PYTHONUNBUFFERED": "1",
    }


def basic(login: str) -> tuple[str, str]:
    """A login as an HTTP client takes it."""
    user, _, password = login.partition(":")
    return user, password


def prefect_service(home: Path, environment: Mapping[str, str | None]) -> ManagedProcess:
    """Prefect's API and pages, configured like a container, by the environment, but without types of blocks."""
    port = own_port()
    variables = {
        "PREFECT_API_URL": None,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        SERVER: LOGIN,
        CLIENT: None,
        ORIGINS: f"http://127.0.0.1:{port}",
        **WITHOUT_BLOCKS,
    }
    return ManagedProcess(
        name="prefect",
        home=home,
        arguments=("grpo_local.prefect_server.app",),
        port=port,
        path="/api",
        environment={**environment, **variables},
    )


def mlflow_service(home: Path, environment: Mapping[str, str | None], *, database: str) -> ManagedProcess:
    """MLflow's tracking and registry, configured like a container, by the environment. Files go through it."""
    port = own_port()
    user, password = basic(LOGIN)
    variables = {
        USERNAME: user,
        PASSWORD: password,
        HOSTS: f"127.0.0.1:{port}",
        "MLFLOW_BACKEND_STORE_URI": database,
        "MLFLOW_ARTIFACTS_DESTINATION": str(home / "mlartifacts"),
        "MLFLOW_HOST": "127.0.0.1",
        "MLFLOW_PORT": str(port),
        "MLFLOW_WORKERS": "1",
    }
    return ManagedProcess(
        name="mlflow",
        home=home,
        arguments=("grpo_local.mlflow_server.app",),
        port=port,
        environment={**variables, **environment},
    )
