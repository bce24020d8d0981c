"""Stages sent elsewhere, with a real Prefect server; the test plays the worker, by ending the runs as one would."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.exceptions import CancelledRun
from prefect.states import Completed, Crashed, Failed, Running
from prefect.task_runners import ThreadPoolTaskRunner

from grpo.artifacts import Artifact, ArtifactStore
from grpo.config.pipeline import ComputeSettings, GpuStages, PipelineConfig
from grpo.errors import ConfigError, NoLearningSignal
from grpo.identity.cache_identity import RunInputs, stage_key
from grpo.identity.code import source_digest
from grpo_tasks.execution import remote
from grpo_tasks.execution.executor import StageExecutor
from grpo_tasks.execution.remote import RemoteStages
from grpo_tasks.execution.remote_messages import decode, error_message
from grpo_tasks.execution.results import write_result
from grpo_tasks.rollout import RolloutResult, rollout
from grpo_tasks.rollout_request import RolloutRequest
from tests.doubles import put_file

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

PATIENCE_S = 240
POOL = "without-workers"


def _artifact(kind: str) -> Artifact:
    return Artifact(uri=f"s3://bucket/{kind}", sha256=kind, kind=kind)


@pytest.fixture(scope="module")
def deployment(server: str) -> str:
    """A deployment on a pool that has no worker."""
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        client.create_deployment(
            flow_id=client.create_flow_from_name("stage"),
            name=POOL,
            work_pool_name=POOL,
            entrypoint="flows/grpo_flows/stage.py:run_stage",
        )
    return f"stage/{POOL}"


@pytest.fixture
def inputs(desk_config: dict[str, Any]) -> dict[str, Any]:
    """Inputs of a rollout that no other test has sent."""
    config = PipelineConfig.model_validate(desk_config)
    Path(config.store).mkdir()
    return {
        "request": RolloutRequest(
            checkpoint=_artifact("checkpoint"),
            scenarios=_artifact(uuid4().hex),
            split=_artifact("split"),
            parts=config.episode_parts,
            settings=config.rollout,
            seed=3,
        ),
        "samples": 4,
        "temperature": 1.0,
        "part": 0,
        "round": 0,
        "shard": 0,
        "curriculum": None,
        "store": config.store,
    }


@contextmanager
def _sending(shards: list[dict[str, Any]], deployment: str) -> Iterator[tuple[UUID, Callable[[], Any], RemoteStages]]:
    """Send a rollout's shards from a run in another thread: its id, how it ends, and where it sends from."""
    known, ended = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    @flow
    def parent() -> None:
        from prefect.runtime import flow_run

        found["id"] = UUID(flow_run.id)
        compute = ComputeSettings(gpu_stages=GpuStages(deployment=deployment, no_progress_s=70))
        with ThreadPoolTaskRunner(max_workers=2) as runner, RemoteStages(compute) as elsewhere:
            found["elsewhere"] = elsewhere
            known.set()
            found["results"] = StageExecutor(runner, elsewhere).run([rollout.bind(**shard) for shard in shards])

    def run() -> None:
        state = parent(return_state=True)
        found["state"] = state
        ended.set()

    def end() -> Any:
        assert ended.wait(PATIENCE_S)
        found["state"].result()
        return found["results"]

    thread = threading.Thread(target=run)
    thread.start()
    assert known.wait(PATIENCE_S)
    try:
        yield found["id"], end, found["elsewhere"]
    finally:
        found["elsewhere"].__exit__(None, None, None)
        thread.join()


def _sent(client: SyncPrefectClient, parent: UUID, count: int) -> list[Any]:
    """The runs that a run has sent, once there are so many."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[parent]))
        if len(found := client.read_flow_runs(flow_run_filter=below)) >= count:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{count} runs were not sent within {PATIENCE_S:.0f} s")


def _result(store: str, sha256: str) -> str:
    """Message of a finished run: the address of its result."""
    made = RolloutResult(rollout=Artifact(uri=f"{store}/r", sha256=sha256, kind="rollout"), episodes=4, compute_s=2.0)
    kept = put_file(
        ArtifactStore(store), "result", ".json", lambda path: path.write_text(made.model_dump_json()) and None
    )
    return kept.model_dump_json()


def test_shards_go_out_together_and_come_back_in_order(inputs: dict[str, Any], deployment: str):
    """Two runs below the one that sent them, with all that the stage takes; the second one ends first."""
    shards = [{**inputs, "shard": shard} for shard in (0, 1)]
    with _sending(shards, deployment) as (parent, end, _), get_client(sync_client=True) as client:
        sent = _sent(client, parent, 2)
        for run in sent:
            assert run.name == "rollout"
            assert run.parameters["stage"] == "rollout"
            assert run.parameters["sources"] == source_digest()
        by_shard = {decode(rollout, run.parameters["inputs"])["shard"]: run for run in sent}
        for shard in (1, 0):
            message = _result(inputs["store"], f"shard-{shard}")
            client.set_flow_run_state(by_shard[shard].id, Completed(message=message), force=True)
        assert [result.rollout.sha256 for result in end()] == ["shard-0", "shard-1"]


def test_a_result_from_elsewhere_is_a_cache_hit_here(inputs: dict[str, Any], deployment: str):
    """The next run with these inputs sends nothing."""
    with _sending([inputs], deployment) as (parent, end, _), get_client(sync_client=True) as client:
        kept = put_file(ArtifactStore(inputs["store"]), "rollout", ".txt", lambda path: path.write_text("r") and None)
        made = RolloutResult(rollout=kept, episodes=4, compute_s=2.0).model_dump_json()
        left = put_file(ArtifactStore(inputs["store"]), "result", ".json", lambda path: path.write_text(made) and None)
        state = Completed(message=left.model_dump_json())
        client.set_flow_run_state(_sent(client, parent, 1)[0].id, state, force=True)
        first = end()
    with _sending([inputs], "stage/gone") as (_, end, _):
        assert end() == first


def test_an_error_of_the_stage_is_raised_here_at_once(inputs: dict[str, Any], deployment: str):
    """Its type and text, and no second try."""
    with _sending([inputs], deployment) as (parent, end, _), get_client(sync_client=True) as client:
        state = Failed(message="NoLearningSignal: all rewards are equal")
        client.set_flow_run_state(_sent(client, parent, 1)[0].id, state, force=True)
        with pytest.raises(NoLearningSignal, match="all rewards are equal"):
            end()
        assert len(_sent(client, parent, 1)) == 1


def test_a_lost_stage_is_sent_again(inputs: dict[str, Any], deployment: str):
    """A crash is not an error of the stage: another run of it is created, and its result counts."""
    with _sending([inputs], deployment) as (parent, end, _), get_client(sync_client=True) as client:
        first = _sent(client, parent, 1)[0]
        assert first.parameters["no_progress_s"] == 70
        client.set_flow_run_state(first.id, Crashed(message="the machine is gone"), force=True)
        second = next(run for run in _sent(client, parent, 2) if run.id != first.id)
        client.set_flow_run_state(second.id, Completed(message=_result(inputs["store"], "again")), force=True)
        assert [result.rollout.sha256 for result in end()] == ["again"]


@pytest.mark.parametrize("error", [ConnectionResetError("the store"), TimeoutError("the judge")])
def test_a_fault_that_a_retry_can_fix_is_tried_again(inputs: dict[str, Any], deployment: str, error: Exception):
    """It comes back as what it is: the store of the other machine was away, for example."""
    with _sending([inputs], deployment) as (parent, end, _), get_client(sync_client=True) as client:
        first = _sent(client, parent, 1)[0]
        client.set_flow_run_state(first.id, Failed(message=error_message(error)), force=True)
        second = next(run for run in _sent(client, parent, 2) if run.id != first.id)
        client.set_flow_run_state(second.id, Completed(message=_result(inputs["store"], "again")), force=True)
        assert [result.rollout.sha256 for result in end()] == ["again"]


def test_a_result_that_was_left_without_a_state_counts(
    inputs: dict[str, Any], deployment: str, monkeypatch: pytest.MonkeyPatch
):
    """The database of Prefect was away when the stage ended: its run stays Running, and its result is in the store."""
    monkeypatch.setattr(remote, "_LOOK_S", 0.0)
    monkeypatch.setattr(remote, "_ENDING_S", 1.0)
    monkeypatch.setattr(remote, "_POLL_S", 0.5)
    with _sending([inputs], deployment) as (parent, end, _), get_client(sync_client=True) as client:
        sent = _sent(client, parent, 1)[0]
        client.set_flow_run_state(sent.id, Running(), force=True)
        store = ArtifactStore(inputs["store"])
        kept = put_file(store, "rollout", ".txt", lambda path: path.write_text("left") and None)
        write_result(store, stage_key("rollout", inputs), RolloutResult(rollout=kept, episodes=4, compute_s=2.0))
        assert [result.rollout.sha256 for result in end()] == [kept.sha256]
        assert client.read_flow_run(sent.id).state.is_cancelling()


def test_a_page_of_a_proxy_does_not_end_the_wait_for_a_stage(monkeypatch: pytest.MonkeyPatch):
    """The stage goes on elsewhere. If the wait ended, the stage would be cancelled with hours of work."""
    ended = Completed()
    answers: list[Any] = [json.JSONDecodeError("not JSON", "<html>", 0), httpx.ReadError("cut off"), ended]

    def read(client: SyncPrefectClient, flow_run: UUID) -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return SimpleNamespace(state=answer)

    monkeypatch.setattr(SyncPrefectClient, "read_flow_run", read)
    monkeypatch.setattr(remote, "_POLL_S", 0.0)
    sent: Any = SimpleNamespace(id=UUID(int=1), name="update")
    assert RemoteStages(ComputeSettings())._wait(sent, "stage/gpu", lambda: None) is ended


def test_what_was_sent_is_cancelled_when_the_run_breaks_off(inputs: dict[str, Any], deployment: str):
    """Every thread that waits gives up its own run, and says so there."""
    shards = [{**inputs, "shard": shard} for shard in (0, 1)]
    with _sending(shards, deployment) as (parent, end, elsewhere), get_client(sync_client=True) as client:
        sent = _sent(client, parent, 2)
        elsewhere.__exit__(None, None, None)
        with pytest.raises(CancelledRun):
            end()
        assert {client.read_flow_run(run.id).state.is_cancelled() for run in sent} == {True}


def test_a_stage_that_no_worker_takes_is_told(
    inputs: dict[str, Any], deployment: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The run waits, and its log says for what."""
    monkeypatch.setattr(remote, "_WAITING_S", 0.0)
    with (
        caplog.at_level("WARNING", logger="grpo_tasks.execution.remote"),
        _sending([inputs], deployment) as (parent, _, _),
    ):
        with get_client(sync_client=True) as client:
            _sent(client, parent, 1)
        deadline = time.monotonic() + PATIENCE_S
        warning = f"stage rollout waits for a worker. Start one for the work pool of deployment {deployment}"
        while warning not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.2)
    assert warning in caplog.text


class _TenMinutesAhead(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(minutes=10)


def test_a_stage_is_due_at_once_although_the_clock_of_its_sender_is_ahead(
    inputs: dict[str, Any], deployment: str, monkeypatch: pytest.MonkeyPatch
):
    """By the sender's clock it would be due ten minutes later, and no worker would take it before."""
    monkeypatch.setattr(remote, "datetime", _TenMinutesAhead)
    with _sending([inputs], deployment) as (parent, _, _), get_client(sync_client=True) as client:
        sent = _sent(client, parent, 1)[0]
        assert sent.expected_start_time < datetime.now(UTC) + timedelta(minutes=5)


def test_a_deployment_that_is_not_there_is_named(inputs: dict[str, Any]):
    """The setting, its value and the remedy."""
    with (
        _sending([inputs], "stage/nowhere") as (_, end, _),
        pytest.raises(
            ConfigError, match=r"compute.gpu_stages.deployment: deployment stage/nowhere does not exist.*deploy"
        ),
    ):
        end()


def test_the_place_of_computation_is_not_in_the_run_key(desk_config: dict[str, Any]):
    """The same key with and without: the same record, the same registered version."""
    here = PipelineConfig.model_validate(desk_config)
    there = PipelineConfig.model_validate({**desk_config, "compute": {"gpu_stages": {"stages": ["train"]}}})
    keys = [RunInputs.of(config).key(config) for config in (here, there)]
    assert keys[0] == keys[1]


def test_a_sent_stage_is_waited_for_in_this_process_also_if_shards_run_on_a_cluster(inputs: dict[str, Any]):
    """What waits for another machine cannot be sent to a worker of a cluster. Without a deployment it ends at once."""

    class Cluster:
        def submit(self, *_: object, **__: object) -> None:
            raise AssertionError("the cluster got the stage")

    cluster: Any = Cluster()

    @flow
    def parent() -> None:
        compute = ComputeSettings(gpu_stages=GpuStages(deployment="stage/nowhere"))
        with RemoteStages(compute) as elsewhere:
            StageExecutor(cluster, elsewhere).run([rollout.bind(**inputs)])

    with pytest.raises(ConfigError, match="nowhere"):
        parent()


def test_rollouts_have_one_place(desk_config: dict[str, Any]):
    """Dask and another pool cannot both play them."""
    dask = {**desk_config, "rollout": {"runner": "dask"}}
    with pytest.raises(ValueError, match="not to both"):
        PipelineConfig.model_validate({**dask, "compute": {"gpu_stages": {}}})
    PipelineConfig.model_validate({**dask, "compute": {"gpu_stages": {"stages": ["train"]}}})
