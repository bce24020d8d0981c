"""Assumptions of the manifests, checked on the real programs: addresses, and the result of `grpo deploy`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from grpo_local.login import CLIENT, HOSTS
from grpo_local.managed_process import ManagedProcess
from tests.e2e.served import LOGIN, basic, mlflow_service
from tests.greeting import write_greeting
from tests.places import ROOT
from tests.ports import own_port

pytestmark = pytest.mark.e2e
DEPLOYMENTS = ROOT / "deployments"


def _paths(program: str) -> set[str]:
    """Paths that compose and Kubernetes ask of a program."""
    services = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    found = set(re.findall(r"127\.0\.0\.1:\d+(/[\w/]+)'", services[program]["healthcheck"]["test"][-1]))
    manifest = {"worker": "worker-cpu"}.get(program, program)
    for document in yaml.safe_load_all((DEPLOYMENTS / "kubernetes" / f"{manifest}.yaml").read_text(encoding="utf-8")):
        if document["kind"] == "Deployment":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            found |= {container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert found
    return found


def _environment(server: str, home: Path) -> dict[str, str]:
    """Commands of this installation, and the server of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": server, "GRPO_HOME": str(home)}


@pytest.fixture(scope="module")
def deployed(server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """`grpo deploy`, run twice on the server of the tests; gives its address."""
    folder = tmp_path_factory.mktemp("deployed")
    write_greeting(folder)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "grpo_cli", "deploy"],
            env={**_environment(server, folder), "GPU_SLOTS": "3"},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return server


def test_the_command_makes_pools_slots_and_deployments(deployed: str):
    """Run a second time it changes nothing."""
    with httpx.Client(base_url=deployed, auth=basic(os.environ[CLIENT]), timeout=60) as client:
        pools = client.post("/work_pools/filter", json={}).json()
        queue = client.get("/work_pools/cpu/queues/training").json()
        slots = client.get("/v2/concurrency_limits/gpu").json()
        deployment = client.get("/deployments/name/greet/greeting").json()
    assert {pool["name"]: pool["type"] for pool in pools}.items() >= {"cpu": "process", "gpu": "process"}.items()
    assert (queue["concurrency_limit"], slots["limit"], deployment["work_pool_name"]) == (1, 3, "cpu")


def test_prefect_answers_where_it_is_probed(server: str):
    """Under the paths of the manifests, without a login."""
    for path in _paths("prefect"):
        assert httpx.get(server.removesuffix("/api") + path, timeout=60).status_code == 200


def test_mlflow_answers_where_it_is_probed_and_to_its_name(tmp_path: Path):
    """By its service's name as the manifests let it, and to no other: that is how a page elsewhere would call it."""
    container = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))["services"]["mlflow"]
    assert container["command"] == ["python", "-m", "grpo_local.mlflow_server.app"]
    hosts = container["environment"][HOSTS]
    own = own_port()
    variables = {HOSTS: f"127.0.0.1:{own},{hosts}", "MLFLOW_PORT": str(own)}
    served = mlflow_service(tmp_path, variables, database=f"sqlite:///{tmp_path}/mlflow.db")
    with replace(served, port=own).shared() as url:
        for path in _paths("mlflow"):
            assert httpx.get(url + path, timeout=60).status_code == 200
        asked = f"{url}/api/2.0/mlflow/experiments/get?experiment_id=0"
        answers = [
            httpx.get(asked, headers={"Host": host}, auth=basic(LOGIN), timeout=60).status_code
            for host in (*hosts.split(","), "x")
        ]
        assert answers == [200, 200, 200, 403]


def test_a_worker_answers_where_it_is_probed(deployed: str, tmp_path: Path):
    """With the arguments of the manifests."""
    services = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))["services"]
    port = own_port()
    variables = {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(port)}
    worker = ManagedProcess(
        name="worker",
        home=tmp_path,
        arguments=tuple(services["worker"]["command"]),
        port=port,
        environment={**_environment(deployed, tmp_path), **variables},
    )
    with worker.shared() as url:
        for path in _paths("worker"):
            assert httpx.get(url + path, timeout=60).status_code == 200
