"""The stack of one machine, real: servers, workers and supervisor as processes, deployments run by a worker."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import yaml
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterName,
)
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, StateType

from grpo.evaluation.report import read_report
from grpo.evaluation.schema import ReportDocument
from grpo_local.login import PASSWORD, USERNAME
from grpo_local.managed_process import ManagedProcess, port_is_free
from grpo_local.workers.recovery import flow_run_processes
from tests import waiting
from tests.doubles import short_run
from tests.e2e.commands import start
from tests.new_homes import put_databases
from tests.places import ROOT
from tests.ports import own_port
from tests.processes import each

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

PATIENCE_S = 400.0
until = partial(waiting.until, patience_s=PATIENCE_S, every_s=waiting.ASKED_S)


@dataclass(frozen=True)
class Stack:
    """The stack that `grpo up` has started, with the requests of the tests."""

    home: Path
    environment: dict[str, str]
    deployments: Path
    login: dict[str, str] = field(default_factory=dict)
    """The variables that `grpo env` exports."""

    @cached_property
    def api(self) -> SyncPrefectClient:
        return SyncPrefectClient(self.login["PREFECT_API_URL"], auth_string=self.login["PREFECT_API_AUTH_STRING"])

    def command(self, *arguments: str) -> str:
        """Run `grpo` to its end; its output."""
        output = self.home.parent / f"{arguments[0]}.txt"
        code, printed = start(*arguments, environment=self.environment, output=output).end(timeout_s=PATIENCE_S)
        assert code == 0, printed
        return printed

    def up(self, deployments: Path | None = None) -> str:
        printed = self.command("up", "--deployments", str(deployments or self.deployments))
        exports = shlex.split(self.command("env"))
        self.login.update(assignment.split("=", 1) for assignment in exports if assignment != "export")
        return printed

    def prefect(self, *arguments: str) -> str:
        """Run a command of Prefect to its end; its output."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            env={**self.environment, **self.login},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, deployment: str, *overrides: str) -> UUID:
        """Begin a run of a deployment as its form would."""
        found = self.api.read_deployment_by_name(deployment)
        return self.api.create_flow_run_from_deployment(found.id, parameters={"overrides": overrides}).id

    def state(self, run: UUID) -> StateType | None:
        return self.api.read_flow_run(run).state_type

    def ended(self, run: UUID) -> FlowRun:
        """Wait until this run has ended; Crashed is not an end, for it is started again."""
        ends = (StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED)
        until(f"the end of run {run}", lambda: self.state(run) in ends)
        return self.api.read_flow_run(run)

    def stage_is(self, run: UUID, stage: str, state: StateType) -> bool:
        """True if a stage of this run is in this state."""
        found = self.api.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])),
            task_run_filter=TaskRunFilter(name=TaskRunFilterName(like_=f"{stage}-")),
        )
        return any(one.state_type == state for one in found)

    def report(self, name: str) -> ReportDocument:
        return read_report(self.home / name / "report.json")

    def schedule(self, deployment: str) -> DeploymentSchedule:
        (found,) = self.api.read_deployment_by_name(deployment).schedules
        return found

    def let_schedule(self, deployment: str, *, active: bool) -> None:
        """Pause the schedule of a deployment, or let it go on."""
        self.api.update_deployment_schedule(
            self.api.read_deployment_by_name(deployment).id, self.schedule(deployment).id, active=active
        )

    def registered(self) -> list[str]:
        """Names of the registered models."""
        with pytest.MonkeyPatch.context() as environment:
            for name in (USERNAME, PASSWORD):
                environment.setenv(name, self.login[name])
            return [model.name for model in MlflowClient(self.login["MLFLOW_TRACKING_URI"]).search_registered_models()]

    def services(self) -> dict[str, psutil.Process | None]:
        """The processes that `grpo up` is to start."""
        names = ("prefect", "mlflow", "supervisor", "worker-cpu", "worker-gpu")
        return {name: ManagedProcess(name=name, home=self.home, arguments=()).process() for name in names}

    def processes(self) -> list[psutil.Process]:
        """Everything that lives and belongs to this home."""
        return [
            one
            for one in psutil.process_iter(["environ", "status"])
            if (one.info["environ"] or {}).get("GRPO_HOME") == str(self.home)
            and one.info["status"] != psutil.STATUS_ZOMBIE
        ]


def write_deployments(folder: Path) -> Path:
    """The quickstart, and three deployments of a short run: by hand, every few seconds, every week."""
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    document["pull"] = [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
    config = folder / "short.yaml"
    config.write_text(yaml.safe_dump(short_run(folder)))
    quickstart = next(one for one in document["deployments"] if one["name"] == "quickstart")
    step = {"grpo_local.deployments.load_parameters": {"id": "parameters", "file": str(config)}}
    short = {**quickstart, "name": "short", "build": [step]}
    often = {**short, "name": "often", "schedules": [{"interval": 5, "slug": "often", "active": False}]}
    weekly = {**short, "name": "weekly", "schedules": [{"cron": "0 3 * * 1", "slug": "weekly"}]}
    document["deployments"] = [quickstart, short, often, weekly]
    for shared in ("data",):  # paths count from the folder of the file
        (folder / shared).symlink_to(ROOT / shared)
    (folder / "prefect.yaml").write_text(yaml.safe_dump(document))
    return folder / "prefect.yaml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack on free ports, in a home of its own."""
    folder = tmp_path_factory.mktemp("stack")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "GRPO"))}
    environment = {
        **kept,
        "GRPO_HOME": str(put_databases(folder / "home")),
        "PREFECT_SERVER_API_PORT": str(own_port()),
        "GRPO_MLFLOW_PORT": str(own_port()),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "3",
    }
    found = Stack(home=folder / "home", environment=environment, deployments=write_deployments(folder))
    try:
        found.up()
        with found.api:
            yield found
    finally:
        found.command("down")
        list(each(found.processes(), psutil.Process.kill))


def test_a_deployed_run_completes_on_the_worker_with_the_parameters_it_was_given(stack: Stack):
    """`prefect deployment run train/quickstart --watch`: the quickstart, made small by overrides."""
    small = ["name=given", f"store={stack.home / 'given'}", "scenarios.limit=24", "rollout.scenarios=6"]
    small += ["training.iterations=1", "training.groups_per_step=6", "evaluation.resamples=200"]
    output = stack.prefect("deployment", "run", "train/quickstart", "-p", f"overrides={json.dumps(small)}", "--watch")
    assert "Completed" in output
    document = stack.report("given")
    assert (len(document.iterations), document.ingestion.heldout) == (1, 24)
    assert "support-desk" in stack.registered()


def test_an_unknown_parameter_is_refused_before_a_run_starts(stack: Stack):
    """The form's schema is enforced: nothing is scheduled."""
    with pytest.raises(AssertionError, match="many"):
        stack.prefect("deployment", "run", "train/short", "-p", 'overrides="many"')


def test_scheduled_runs_begin_by_themselves_one_after_the_other(stack: Stack):
    """A schedule of 5 s and runs that take longer, and one of another deployment: none trains beside another."""
    deployment = stack.api.read_deployment_by_name("train/often")
    stack.let_schedule("train/often", active=True)

    def begun() -> list[FlowRun]:
        mine = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
        found = stack.api.read_flow_runs(deployment_filter=mine)
        return sorted(
            (run for run in found if run.expected_start_time <= datetime.now(UTC)),
            key=lambda run: run.expected_start_time,
        )

    until("a run that trains", lambda: any(run.state_type == StateType.RUNNING for run in begun()))
    until("another that is due", lambda: len(begun()) >= 2)
    stack.let_schedule("train/often", active=False)
    first, second, *others = begun()
    assert second.start_time is None, "it waits"
    for other in others:
        stack.prefect("flow-run", "cancel", str(other.id))
    third = stack.start("train/weekly", "name=third", "seed=9", "training.iterations=1")
    runs = sorted((stack.ended(run) for run in (first.id, second.id, third)), key=lambda run: run.start_time)
    assert [run.auto_scheduled for run in runs].count(True) == 2
    assert all(run.state_type == StateType.COMPLETED for run in runs)
    assert all(one.end_time <= other.start_time for one, other in pairwise(runs))


def test_a_cancelled_run_ends_its_children_and_registers_nothing(stack: Stack):
    """Cancelled while processes of a cluster play: none of them is left, and the registry knows no such model."""
    run = stack.start("train/short", "name=cancelled", "seed=5", "rollout.runner=dask", "registry.model_name=cancelled")
    until("players of the rollout", lambda: len(flow_run_processes().get(run, [])) >= 3)
    until("the rollout", lambda: stack.stage_is(run, "rollout", StateType.RUNNING))
    stack.prefect("flow-run", "cancel", str(run))
    assert stack.ended(run).state_type == StateType.CANCELLED
    until("no process of the run", lambda: run not in flow_run_processes())
    assert "cancelled" not in stack.registered()


def test_a_killed_worker_is_noticed_and_the_run_goes_on_from_its_cache(stack: Stack):
    """Worker and flow run are killed after the first update: the same run completes, and that update is a cache hit."""
    run = stack.start("train/short", "name=killed", "seed=6", "training.iterations=3")
    until("the first update", lambda: stack.stage_is(run, "train", StateType.COMPLETED))
    worker = stack.services()["worker-cpu"]
    assert worker is not None
    list(each((worker, *flow_run_processes()[run]), psutil.Process.kill))
    assert stack.ended(run).state_type == StateType.COMPLETED
    stages = {stage.name: stage for stage in stack.report("killed").stages}
    assert (stages["ingest"].cached, stages["train"].runs) == (1, 3)
    assert stages["train"].cached >= 1


def test_down_ends_everything_and_up_loses_nothing(stack: Stack):
    """A run under way goes on after the next `up`, a paused schedule stays paused; in between no process is left."""
    assert stack.schedule("train/weekly").active
    stack.let_schedule("train/weekly", active=False)
    run = stack.start("train/short", "name=continued", "seed=7", "training.iterations=3")
    until("the first update", lambda: stack.stage_is(run, "train", StateType.COMPLETED))
    stack.command("down")
    assert not stack.processes()
    assert port_is_free("127.0.0.1", int(stack.environment["PREFECT_SERVER_API_PORT"]))
    stack.up()
    assert stack.ended(run).state_type == StateType.COMPLETED
    assert {stage.name: stage.cached for stage in stack.report("continued").stages}["train"] >= 1
    assert not stack.schedule("train/weekly").active


def test_a_second_up_leaves_what_runs_alone_and_deploys(stack: Stack):
    """The same processes as before; the project's own deployments, and every field of their forms has a description."""
    before = stack.services()
    stack.up(ROOT / "prefect.yaml")
    assert stack.services() == before
    assert None not in before.values()
    deployed = stack.api.read_deployments()
    assert {one.name for one in deployed} >= {"quickstart", "nightly", "champion", "manual", "tiny", "gpu"}
    undescribed = [
        f"{deployment.name}: {kind}.{name}"
        for deployment in deployed
        for kind, definition in {
            "parameters": deployment.parameter_openapi_schema,
            **deployment.parameter_openapi_schema.get("definitions", {}),
        }.items()
        for name, field in definition.get("properties", {}).items()
        if "description" not in field
    ]
    assert not undescribed
