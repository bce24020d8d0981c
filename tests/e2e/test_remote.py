"""A run on one machine sends its GPU stages to another; they share an object store and the two servers, nothing else.

The machines are two workers of Prefect's with homes of their own; the object store is an S3 server on loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from grpo.artifacts import Artifact
from grpo.config.pipeline import ComputeSettings, GpuStages, PipelineConfig
from grpo.config.training import TrainingSettings
from grpo.errors import ArtifactError
from grpo.evaluation.report import read_report
from grpo_local.workers.recovery import flow_run_processes
from tests import waiting
from tests.doubles import changed
from tests.object_store import object_store
from tests.places import ROOT
from tests.ports import own_port
from tests.processes import each, family

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

STORE = "s3://grpo/artifacts"
PATIENCE_S = 600.0
until = partial(waiting.until, patience_s=PATIENCE_S, every_s=waiting.ASKED_S)


@dataclass(frozen=True, slots=True)
class Machine:
    """A worker of one pool, with its own home."""

    home: Path
    worker: subprocess.Popen[bytes]

    def flow_run_process(self) -> psutil.Process | None:
        """The process of a flow run that is going on here, if there is one. The worker must be running."""
        assert self.worker.poll() is None, (
            f"the worker has ended: {(self.home.parent / 'worker.log').read_text()[-2000:]}"
        )
        own = set(family(psutil.Process(self.worker.pid)))
        return next((process for group in flow_run_processes().values() for process in group if process in own), None)

    def fork_servers(self) -> list[psutil.Process]:
        """The processes from which stages are forked."""
        children = psutil.Process(self.worker.pid).children()
        commands = each(children, lambda child: (child, child.cmdline()))
        return [child for child, command in commands if "grpo_local.workers.fork_server" in command]


def _machine(folder: Path, pool: str, server: str, mlflow: str) -> Machine:
    """Start a worker that knows the servers, and has everything else for itself."""
    (folder / "tmp").mkdir(parents=True)
    environment = {
        **os.environ,
        "GRPO_HOME": str(folder / "home"),
        "PREFECT_HOME": str(folder / "prefect"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT),
        "PREFECT_API_URL": server,
        "MLFLOW_TRACKING_URI": mlflow,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", "2"],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Machine(home=folder / "home", worker=worker)


def _deploy(entrypoint: str, flow: str, pool: str) -> None:
    """A work pool and a deployment of that name on it."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    here = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        client.create_deployment(
            flow_id=client.create_flow_from_name(flow),
            name=pool,
            work_pool_name=pool,
            entrypoint=entrypoint,
            pull_steps=[here],
        )


@pytest.fixture(scope="module")
def machines(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    """A machine for the run and one for its GPU stages, on pools `cpu-remote` and `gpu-remote`."""
    from grpo_local.servers import mlflow_server

    folder = tmp_path_factory.mktemp("machines")
    with pytest.MonkeyPatch.context() as environment, object_store(environment):
        environment.setenv("GRPO_MLFLOW_PORT", str(own_port()))
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        with mlflow_server(folder) as mlflow:
            _deploy("flows/grpo_flows/train.py:train", "train", "cpu-remote")
            _deploy("flows/grpo_flows/stage.py:run_stage", "stage", "gpu-remote")
            started = [_machine(folder / pool, f"{pool}-remote", server, mlflow) for pool in ("cpu", "gpu")]
            try:
                yield started[0], started[1]
            finally:
                for machine in started:
                    processes = family(psutil.Process(machine.worker.pid))
                    machine.worker.kill()
                    machine.worker.wait()
                    list(each(processes, psutil.Process.kill))


def _config(desk_config: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """One iteration in one shard: four stages go to the other machine."""
    return changed(desk_config, training={"iterations": 1}, **sections)


def _elsewhere(**stages: Any) -> dict[str, Any]:
    return {"store": STORE, "compute": {"gpu_stages": {"deployment": "stage/gpu-remote", **stages}}}


def _start(config: dict[str, Any]) -> UUID:
    from prefect.deployments import run_deployment

    return run_deployment("train/cpu-remote", parameters={"config": config}, timeout=0).id


def _read(flow_run: UUID) -> Any:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run)


def _final(flow_run: UUID) -> Any:
    return until(f"the end of {flow_run}", lambda: (run := _read(flow_run)).state.is_final() and run)


def _children(flow_run: UUID) -> list[Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId

    with get_client(sync_client=True) as client:
        parent = FlowRunFilterParentFlowRunId(any_=[flow_run])
        return client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent))


def test_a_run_that_sends_its_gpu_stages_ends_like_one_that_does_not(
    machines: tuple[Machine, Machine], desk_config: dict[str, Any], home: Path
):
    """The same candidate, numbers and decision; the records say which pool did what; a second run sends nothing."""
    from grpo_flows.train import train

    config = _config(desk_config)
    train(PipelineConfig.model_validate({**config, "name": "together"}))
    together = read_report(home / "together" / "report.json")

    run = _final(_start({**config, "name": "apart", **_elsewhere()}))
    assert run.state.is_completed(), run.state.message
    cpu, gpu = machines
    apart = read_report(cpu.home / "apart" / "report.json")
    assert apart.lineage.candidate_policy == together.lineage.candidate_policy
    assert apart.decision == together.decision
    assert apart.evaluation == together.evaluation

    assert run.work_pool_name == "cpu-remote"
    sent = _children(run.id)
    assert {child.work_pool_name for child in sent} == {"gpu-remote"}
    assert sorted(child.name for child in sent) == ["rollout", "rollout", "rollout", "train"]
    assert not (gpu.home / "apart").exists()
    assert len(gpu.fork_servers()) == 1, "all stages have the same environment"
    assert cpu.fork_servers() == []

    again = _final(_start({**config, "name": "apart", **_elsewhere()}))
    assert again.state.is_completed(), again.state.message
    assert _children(again.id) == []
    stages = read_report(cpu.home / "apart" / "report.json").stages
    assert all(stage.cached == stage.runs for stage in stages), stages


def test_a_cancelled_run_cancels_what_it_has_sent(machines: tuple[Machine, Machine], desk_config: dict[str, Any]):
    """The child ends as cancelled, and its process with it."""
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    run = _start(_config(desk_config, name="cancelled", seed=91, **_elsewhere()))
    child = until("a child", lambda: _children(run))[0]
    gpu = machines[1]
    process = until("the child's process", gpu.flow_run_process)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Cancelling())
    assert _final(run).state.is_cancelled()
    assert _final(child.id).state.is_cancelled()
    until("the end of the child's process", lambda: not process.is_running())


def test_a_lost_stage_is_sent_again_and_its_error_comes_back(machines: tuple[Machine, Machine]):
    """Its process is killed: another is sent. What that one finds wrong is known here by its type and text."""
    import threading

    from prefect import flow

    from grpo_tasks.execution.executor import stage_executor
    from grpo_tasks.train import train

    gpu = machines[1]
    ids: list[UUID] = []

    def kill_the_first() -> None:
        process = until("the stage's process", gpu.flow_run_process)
        os.kill(process.pid, signal.SIGKILL)

    @flow
    def parent() -> None:
        from prefect.runtime import flow_run

        ids.append(UUID(flow_run.id))
        gone = Artifact(uri=f"{STORE}/scored/gone.parquet", sha256="0", kind="scored")
        compute = ComputeSettings(gpu_stages=GpuStages(deployment="stage/gpu-remote"))
        with stage_executor(compute=compute):
            train((gone,), gone, gone, TrainingSettings(), renderer=None, iteration=0, seed=1, store=STORE)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    with pytest.raises(ArtifactError, match=r"scored s3://grpo/artifacts/scored/gone.parquet is missing"):
        parent()
    killer.join()
    assert sorted(child.state.type.value for child in _children(ids[0])) == ["CRASHED", "FAILED"]
