"""Training runs by the API of a served champion: a worker trains, and the server changes to the version."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from grpo.serving.engine.registered import WatchedVersion
from grpo_local.deployments import deploy
from grpo_local.servers import prefect_service
from grpo_local.stack import worker_service
from grpo_local.training_jobs import PrefectJobs
from grpo_tasks.registry import registry
from tests import waiting
from tests.doubles import short_run
from tests.grpo.registry.making import put_into_service
from tests.grpo.registry.test_served_agent import registered
from tests.grpo.serving.chat_servers import ChatServer, chat_server
from tests.places import DESK_MODEL, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

MODEL = "trained-by-api"
DEPLOYMENT = "train/by-api"
PATIENCE_S = 240.0
until = partial(waiting.until, patience_s=PATIENCE_S, every_s=waiting.ASKED_S)


@dataclass(frozen=True, kw_only=True)
class Api:
    """A running server, asked as an operator."""

    server: ChatServer
    key: str
    """Name of its key."""

    def call(self, method: str, path: str, **body: Any) -> httpx.Response:
        return httpx.request(
            method, f"{self.server.url}{path}", headers=self.server.headers(self.key), json=body or None, timeout=60
        )

    def start(self, **overrides: float) -> str:
        """Id of a new run."""
        response = self.call("POST", "/v1/train", config=DEPLOYMENT, overrides=overrides)
        assert (response.status_code, response.json()["status"]) == (202, "scheduled"), response.text
        return str(response.json()["id"])

    def job(self, id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/v1/train/{id}").json())

    def cancel(self, id: str) -> httpx.Response:
        return self.call("POST", f"/v1/train/{id}/cancel")

    def fingerprint(self) -> str:
        """Version and weights that answer a new conversation."""
        client = self.server.client(self.key)
        reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        return str(reply.system_fingerprint)


def write_deployment(folder: Path) -> Path:
    """One deployment of a short run, whose gates a loss does not fail."""
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    document["pull"] = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
    config = folder / "by_api.yaml"
    gates = [{"kind": "improvement", "margin": -1.0}]
    config.write_text(
        yaml.safe_dump(
            short_run(
                folder, scenarios={"limit": 12}, rollout={"scenarios": 4}, gates=gates, registry={"model_name": MODEL}
            )
        )
    )
    quickstart = next(deployment for deployment in document["deployments"] if deployment["name"] == "quickstart")
    step = {"grpo_local.deployments.load_parameters": {"id": "parameters", "file": str(config)}}
    document["deployments"] = [{**quickstart, "name": DEPLOYMENT.partition("/")[2], "build": [step]}]
    (folder / "data").symlink_to(ROOT / "data")  # paths count from the folder of the file
    (folder / "prefect.yaml").write_text(yaml.safe_dump(document))
    return folder / "prefect.yaml"


@pytest.fixture
def stack(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Home with a champion, beside a Prefect server and a worker that take its training runs."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks"))))
    champion = registered(tmp_path, DESK_MODEL, registry={"model_name": MODEL})
    put_into_service(registry(), MODEL, champion.version)
    deploy(write_deployment(tmp_path))
    tracking = os.environ["MLFLOW_TRACKING_URI"]
    with worker_service(tmp_path, "cpu", prefect_url=server, mlflow_url=tracking).shared():
        yield tmp_path


@contextmanager
def serving(home: Path, key: str) -> Iterator[Api]:
    """The champion's server, with a key of this name."""
    following = WatchedVersion(registry(), f"models:/{MODEL}@champion")
    with chat_server(home / "server", following, orchestrator=PrefectJobs(home)) as running:
        yield Api(server=running, key=key)


def test_a_run_by_api_is_promoted_and_the_server_answers_with_it(stack: Path, home: Path):
    """A second run waits for it and is cancelled; another server knows both, until Prefect is gone."""
    with serving(stack, "first") as api:
        before = api.fingerprint()
        run, queued = api.start(**{"training.iterations": 2}), api.start(seed=9)
        until("the first iteration", lambda: api.job(run)["iterations"])
        assert api.job(queued)["status"] == "scheduled", "two runs of one queue train at once"
        assert (api.cancel(queued).status_code, api.job(queued)["status"]) == (200, "cancelled")
        ended = until("the end of the run", lambda: (job := api.job(run))["ended"] and job)
        assert (ended["status"], ended["iterations"], ended["message"][:8]) == ("completed", 2, "promote:"), ended
        until("the swap", lambda: api.server.service.versions.swaps)
        after = api.fingerprint()
        assert (before.rpartition("-")[0], after.rpartition("-")[0]) == (f"{MODEL}/1", f"{MODEL}/2")
        assert before.rpartition("-")[2] != after.rpartition("-")[2], "the weights are the same"
    with serving(stack, "second") as api:
        listed = {job["id"]: job["status"] for job in api.call("GET", "/v1/train").json()["data"]}
        assert (listed[run], listed[queued], api.job(run)) == ("completed", "cancelled", ended)
        prefect = prefect_service(home)
        prefect.stop()
        gone = api.call("POST", "/v1/train", config=DEPLOYMENT)
        assert (gone.status_code, "retry-after" in gone.headers) == (503, True)
        assert "Start it with grpo up" in gone.json()["error"]["message"]
        assert api.fingerprint() == after
        prefect.start()
        prefect.wait()
        assert api.job(run) == ended
