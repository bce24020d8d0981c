"""A team's stack on loopback, in parts that can each be disturbed: two machines, PostgreSQL, Prefect, MLflow, S3.

Each machine reaches the object store by a proxy of its own, and both reach MLflow by a proxy; Prefect's server and
PostgreSQL are themselves stopped and started. Deployments and automations are those of `grpo deploy`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from prefect.context import refresh_global_settings_context

from grpo_local import settings
from grpo_local.login import CLIENT, HOSTS, PASSWORD, USERNAME
from grpo_local.managed_process import ManagedProcess
from tests.chaos.machine import Machine
from tests.chaos.proxy import Proxy
from tests.e2e.postgres import Cluster, postgres
from tests.e2e.served import LOGIN, basic, mlflow_service, prefect_service
from tests.object_store import CREDENTIALS
from tests.places import ROOT
from tests.ports import own_port

SILENCE_S = 70
"""Time without a heartbeat after which a run is lost here, instead of `settings.SILENCE_S`: a cell is 50 s shorter."""
BUCKET = "grpo"


class Receiver:
    """A webhook, and the texts that it was sent."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        texts = self.texts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The parts of the stack that runs."""

    folder: Path
    cluster: Cluster
    prefect: ManagedProcess
    mlflow: ManagedProcess
    mlflow_proxy: Proxy
    cpu: Machine
    gpu: Machine
    receiver: Receiver
    bucket_url: str
    """Address of the object store itself."""

    @property
    def machines(self) -> tuple[Machine, Machine]:
        return self.cpu, self.gpu

    def start_prefect(self) -> None:
        """Start Prefect's server where it was, and wait until it answers."""
        self.prefect.start()
        self.prefect.wait()


@contextmanager
def running_stack() -> Iterator[Stack]:
    """Start the stack in a folder of its own, with the environment of this process as that of its operator."""
    folder = Path(tempfile.mkdtemp(prefix="grpo-chaos-"))
    operator = {
        "GRPO_SIGNING_KEY": "a-key-of-the-chaos-table-of-32-characters",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks"))),
        **CREDENTIALS,
    }
    for name in [name for name in os.environ if name.startswith(("PREFECT", "MLFLOW", "GRPO", "AWS"))]:
        del os.environ[name]
    os.environ.update({**settings.home_variables(folder / "operator"), **operator})
    del os.environ["MLFLOW_TRACKING_URI"]
    with ExitStack() as parts:
        cluster = parts.enter_context(postgres(durable=True))
        bucket_url = parts.enter_context(_object_store(folder))
        store_proxies = [parts.enter_context(Proxy(int(bucket_url.rpartition(":")[2]))) for _ in range(2)]
        mlflow_proxy = parts.enter_context(Proxy())
        variables = {
            "PREFECT_API_DATABASE_CONNECTION_URL": cluster.database("prefect", driver="postgresql+asyncpg"),
        }
        models = cluster.database("mlflow")
        migrate = [sys.executable, "-m", "grpo_cli", "migrate"]
        known = {**os.environ, **variables}
        subprocess.run(migrate, env={**known, "MLFLOW_TRACKING_URI": models}, check=True, cwd=ROOT, timeout=300)
        prefect = prefect_service(folder / "servers", variables)
        mlflow = mlflow_service(folder / "servers", {}, database=models)
        assert mlflow.port is not None
        mlflow_proxy.target = mlflow.port
        hosts = f"127.0.0.1:{mlflow.port},127.0.0.1:{mlflow_proxy.port}"
        mlflow = replace(mlflow, environment={**mlflow.environment, HOSTS: hosts})
        os.environ["PREFECT_API_URL"] = parts.enter_context(prefect.shared())
        parts.enter_context(mlflow.shared())
        os.environ |= {CLIENT: LOGIN, **dict(zip((USERNAME, PASSWORD), basic(LOGIN), strict=True))}
        receiver = Receiver()
        os.environ["GRPO_NOTIFY_URL"] = receiver.url
        os.environ["AWS_ENDPOINT_URL"] = bucket_url
        refresh_global_settings_context()  # Prefect may have read the environment when it was imported
        _deploy(folder)
        environment = {**os.environ, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow_proxy.port}"}
        del environment["GRPO_NOTIFY_URL"]
        os.environ["MLFLOW_TRACKING_URI"] = mlflow.url
        cpu, gpu = (
            parts.enter_context(Machine(folder, pool, environment, proxy))
            for pool, proxy in zip(("cpu", "gpu"), store_proxies, strict=True)
        )
        yield Stack(
            folder=folder,
            cluster=cluster,
            prefect=prefect,
            mlflow=mlflow,
            mlflow_proxy=mlflow_proxy,
            cpu=cpu,
            gpu=gpu,
            receiver=receiver,
            bucket_url=bucket_url,
        )


@contextmanager
def _object_store(folder: Path) -> Iterator[str]:
    """moto's S3 server in a process of its own, with one bucket; it keeps objects in memory."""
    port = own_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.2)
        import boto3

        boto3.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        server.kill()
        server.wait()


def _deploy(folder: Path) -> None:
    """`grpo deploy` of the flows for a run and for a stage; its automations notice a lost run sooner."""
    from grpo_local.deployments import deploy

    document = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    document["pull"] = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
    wanted = {"quickstart": "train", "gpu": "stage"}
    step = {"grpo_local.deployments.load_parameters": {"id": "parameters"}}
    document["deployments"] = [
        {**one, "build": [step], "parameters": {}} for one in document["deployments"] if one["name"] in wanted
    ]
    (folder / "prefect.yaml").write_text(yaml.safe_dump(document))
    with mock.patch("grpo_local.automations.SILENCE_S", SILENCE_S):
        deploy(folder / "prefect.yaml", gpu_slots=2)
