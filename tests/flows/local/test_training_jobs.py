from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from grpo.serving.protocol.api_errors import APIError
from grpo_local.training_jobs import PrefectJobs, override

CONFIG = {"training": {"iterations": 8, "learning_rate": 0.1, "shuffle": True}, "scenarios": {"path": "a.jsonl"}}


def _deploy(flow: str, parameters: dict[str, Any]) -> None:
    """A deployment on the server, in a pool without a worker."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name="api-jobs", type="process"))
        id = client.create_flow_from_name(flow)
        client.create_deployment(id, "api-test", parameters=parameters, work_pool_name="api-jobs")


def _set(id: UUID, state: Any) -> None:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(id, state, force=True)


@pytest.mark.usefixtures("server")
def test_a_run_of_a_deployment_is_started_and_followed(home: Path):
    """On a real Prefect server: its parameters are those of the deployment with the other numbers."""
    from prefect import get_client
    from prefect.states import Completed, Running

    _deploy("train", {"config": CONFIG})
    jobs = PrefectJobs(home)
    started = asyncio.run(jobs.start("train/api-test", {"training.iterations": 2}))
    assert (started.deployment, started.status, started.iterations) == ("train/api-test", "scheduled", 0)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(started.id)
    assert run.parameters["config"] == {**CONFIG, "training": {**CONFIG["training"], "iterations": 2}}
    _set(started.id, Running())
    assert asyncio.run(jobs.job(started.id)).status == "running"
    (recent,) = [job for job in asyncio.run(jobs.recent()) if job.id == started.id]
    assert (recent.deployment, recent.status, recent.ended) == ("train/api-test", "running", None)
    _set(started.id, Completed(message="promoted"))
    ended = asyncio.run(jobs.job(started.id))
    assert (ended.status, ended.message, ended.ended is None) == ("completed", "promoted", False)


@pytest.mark.usefixtures("server")
def test_a_run_is_cancelled_once_and_not_after_its_end(home: Path):
    """One that has not begun is cancelled at once; of one that runs, its worker ends the processes."""
    from prefect.states import Completed, Running

    _deploy("train", {"config": CONFIG})
    jobs = PrefectJobs(home)
    waiting, running, over = (asyncio.run(jobs.start("train/api-test", {})).id for _ in range(3))
    _set(running, Running())
    _set(over, Completed())
    for _ in range(2):
        assert asyncio.run(jobs.cancel(waiting)).status == "cancelled"
        assert asyncio.run(jobs.cancel(running)).status == "cancelling"
    with pytest.raises(APIError, match=f"training run {over} is completed already") as error:
        asyncio.run(jobs.cancel(over))
    assert (error.value.status, error.value.code) == (409, "job_ended")


@pytest.mark.usefixtures("server")
def test_updates_that_have_ended_are_counted(home: Path):
    """A flow run with two updates and another stage; it has no deployment."""
    from prefect import flow, runtime, task

    @task(name="train")
    def update(index: int) -> int:
        return index

    @task(name="train_reward")
    def other() -> int:
        return 0

    @flow(name="train")
    def train() -> str:
        for index in range(2):
            update(index)
        other()
        return runtime.flow_run.id

    id = UUID(train())
    deadline = time.monotonic() + 240
    while (job := asyncio.run(PrefectJobs(home).job(id))).iterations < 2:  # Prefect writes task runs a little later
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert (job.iterations, job.deployment, job.status) == (2, "", "completed")


@pytest.mark.usefixtures("server")
def test_a_work_pool_gets_another_limit(home: Path):
    from prefect import get_client

    _deploy("train", {})
    assert asyncio.run(PrefectJobs(home).scale("api-jobs", 3)) == 3
    with get_client(sync_client=True) as client:
        assert client.read_work_pool("api-jobs").concurrency_limit == 3
    with pytest.raises(APIError, match="no work pool") as error:
        asyncio.run(PrefectJobs(home).scale("no-pool", 3))
    assert (error.value.status, error.value.param) == (404, "work_pool.name")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("deployment", "status", "param"),
    [("promote/api-test", 400, "config"), ("train/unknown", 404, "config"), ("retrain/unknown", 404, "config")],
)
def test_only_training_is_started(home: Path, deployment: str, status: int, param: str):
    _deploy("promote", {})
    with pytest.raises(APIError) as error:
        asyncio.run(PrefectJobs(home).start(deployment, {}))
    assert (error.value.status, error.value.param) == (status, param)


@pytest.mark.usefixtures("server")
def test_an_unknown_run_and_one_that_does_not_train_are_not_there(home: Path):
    from prefect import get_client

    _deploy("promote", {})
    with get_client(sync_client=True) as client:
        other = client.create_flow_run_from_deployment(client.read_deployment_by_name("promote/api-test").id)
    for id in (uuid4(), other.id):
        with pytest.raises(APIError) as error:
            asyncio.run(PrefectJobs(home).job(id))
        assert error.value.status == 404


def test_a_server_that_does_not_answer_is_asked_again_later(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(APIError, match="grpo up") as absent:
        asyncio.run(PrefectJobs(tmp_path).recent())
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "0")
    with pytest.raises(APIError, match=r"does not answer \(ConnectError\)\. Start it with grpo up") as closed:
        asyncio.run(PrefectJobs(home).recent())
    assert [error.value.status for error in (absent, closed)] == [503, 503]
    assert None not in [error.value.retry_after_s for error in (absent, closed)]


def test_numbers_and_switches_are_replaced():
    changed = override({"config": CONFIG, "x": 1}, {"training.learning_rate": 1, "training.shuffle": False})
    assert changed["config"]["training"] == {"iterations": 8, "learning_rate": 1, "shuffle": False}
    assert CONFIG["training"]["shuffle"] is True


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scenarios.path", 1),
        ("training.unknown", 1),
        ("training", 1),
        ("training.shuffle", 1),
        ("training.iterations", True),
        ("training.iterations.x", 1),
        ("", 1),
    ],
)
def test_a_path_without_such_a_number_is_refused(path: str, value: float):
    with pytest.raises(APIError) as error:
        override({"config": CONFIG}, {path: value})
    assert (error.value.status, error.value.param) == (400, f"overrides.{path}")
