"""Deployments of prefect.yaml, and `deploy` on a real server."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from grpo.config.pipeline import GpuStages, PipelineConfig, load_config
from grpo.config.retraining import RetrainConfig
from grpo.config.tuning import TuneConfig
from grpo.errors import ConfigError
from grpo_local import settings
from grpo_local.deployments import JOB_TEMPLATE, deploy, load_parameters
from tests.greeting import write_greeting
from tests.places import ROOT

DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    path, _, name = deployment["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(path), name)
    assert isinstance(flow, Flow)
    return flow


def name_of(deployment: dict[str, Any]) -> str:
    return f"{deployment['entrypoint'].split('.')[-2]}/{deployment['name']}"


def test_the_deployments_of_the_pipeline_are_there():
    """One for each job."""
    names = {"train/quickstart", "train/default", "retrain/nightly", "tune/default", "evaluate/champion"}
    assert {name_of(one) for one in DEPLOYMENTS} >= names | {
        "watch/hourly",
        "promote/manual",
        "rollback/manual",
        "pretrain/tiny",
        "stage/gpu",
    }


def test_flows_are_deployed_without_pytorch():
    """`prefect deploy` imports every flow for the schema of its parameters."""
    modules = ", ".join(sorted({one["entrypoint"].rpartition(".")[0] for one in DEPLOYMENTS}))
    code = f"import sys, {modules}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "flows", ROOT / "tasks")))}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[]"


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=name_of)
def test_a_deployment_gives_its_flow_what_it_takes(deployment: dict[str, Any]):
    """Each parameter is one of the flow's, and what the file of its step holds passes its checks."""
    flow = flow_of(deployment)
    given = dict(deployment["parameters"])
    assert set(given) <= set(inspect.signature(flow.fn).parameters)
    (step,) = (one["grpo_local.deployments.load_parameters"] for one in deployment["build"])
    if given.get("config") == "{{ parameters.config }}":
        given["config"] = load_parameters(**{name: value for name, value in step.items() if name != "id"})["config"]
        schema = parameter_schema(flow).model_dump_for_openapi()
        validate(given, schema, raise_on_error=True, preprocess=True, ignore_required=True)  # as Prefect's server does
    filled = {"reason": "a test", "stage": "rollout", "inputs": {}, "sources": "x"}  # required fields of the form
    taken = {name: value for name, value in filled.items() if name in inspect.signature(flow.fn).parameters}
    assert flow.validate_parameters(given | taken)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=name_of)
def test_every_field_of_a_run_form_has_a_description(deployment: dict[str, Any]):
    """The parameters themselves, and all settings in them."""
    schema = parameter_schema(flow_of(deployment)).model_dump()
    missing = [
        f"{kind}.{name}"
        for kind, definition in {"parameters": schema, **schema["definitions"]}.items()
        for name, field in definition.get("properties", {}).items()
        if "description" not in field
    ]
    assert not missing


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=name_of)
def test_a_deployment_has_a_description_a_pool_and_the_offline_variables(deployment: dict[str, Any]):
    """The environment is that of `settings` for every process."""
    assert deployment["description"].endswith(".")
    assert deployment["work_pool"]["name"] in ("cpu", "gpu")
    trains = flow_of(deployment).name in ("train", "retrain", "tune", "pretrain")
    assert deployment["work_pool"].get("work_queue_name") == ("training" if trains else None)
    assert deployment["work_pool"]["job_variables"] == {"env": "{{ parameters.environment }}"}
    assert load_parameters()["environment"] == settings.run_variables()


@pytest.mark.parametrize("deployment", [one for one in DEPLOYMENTS if "schedules" in one], ids=name_of)
def test_a_schedule_can_be_paused_for_good(deployment: dict[str, Any]):
    """It has a slug, which identifies it when it is deployed again, and does not set `active`."""
    for schedule in deployment["schedules"]:
        assert schedule["slug"]
        assert "active" not in schedule


def test_the_config_of_a_deployment_is_the_whole_file():
    """With what it extends: the default deployment has the quickstart's scenarios and its own samples."""
    config = load_parameters(str(ROOT / "data" / "configs" / "default.yaml"))["config"]
    default, quickstart = (
        load_config(ROOT / "data" / "configs" / f"{name}.yaml") for name in ("default", "quickstart")
    )
    assert type(default).model_validate(config) == default
    assert (default.scenarios, default.evaluation.samples) == (quickstart.scenarios, 2)


def test_what_is_laid_over_all_runs_reaches_those_that_are_repeated_and_varied(monkeypatch: pytest.MonkeyPatch):
    """The store and the GPU stages of a cluster, in the configs of train, retrain and tune; wrong ones are refused."""
    sets = ["store=s3://team/artifacts", "compute.gpu_stages={}"]
    monkeypatch.setenv("GRPO_DEPLOY_SET", json.dumps(sets))
    folder = ROOT / "data" / "configs"
    train = load_parameters(str(folder / "quickstart.yaml"))["config"]
    retrain = load_parameters(str(folder / "retrain.yaml"), "grpo.config.retraining:RetrainConfig")["config"]
    tune = load_parameters(str(folder / "tune.yaml"), "grpo.config.tuning:TuneConfig")["config"]
    repeated = RetrainConfig.model_validate(retrain).load_pipeline()
    assert retrain["overrides"] == ["training.iterations=12", *sets]
    for config in (PipelineConfig.model_validate(train), repeated, TuneConfig.model_validate(tune).base):
        assert (config.store, config.compute.gpu_stages) == ("s3://team/artifacts", GpuStages())
    monkeypatch.setenv("GRPO_DEPLOY_SET", '["stores=x"]')
    with pytest.raises(ConfigError, match="stores"):
        load_parameters(str(folder / "retrain.yaml"), "grpo.config.retraining:RetrainConfig")


def test_a_retraining_of_a_run_that_is_missing_is_refused(tmp_path: Path):
    """When it is deployed, and not in each of its nights."""
    file = tmp_path / "retrain.yaml"
    text = (ROOT / "data" / "configs" / "retrain.yaml").read_text(encoding="utf-8")
    file.write_text(re.sub(r"(?m)^pipeline: .*$", "pipeline: missing.yaml", text), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        load_parameters(str(file), "grpo.config.retraining:RetrainConfig")


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_a_pool_of_processes_takes_no_command_also_where_it_was_there_before(tmp_path: Path):
    """A pool with Prefect's own template gets ours; a second call changes nothing."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    shipped = ProcessWorker.get_default_base_job_template()
    deployments = write_greeting(tmp_path)
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name="cpu", type="process"))
        client.update_work_pool("cpu", WorkPoolUpdate(base_job_template=shipped))
        for _ in range(2):
            deploy(deployments, gpu_slots=1)
            assert client.read_work_pool("cpu").base_job_template == JOB_TEMPLATE
    assert "command" in shipped["variables"]["properties"]
    assert list(JOB_TEMPLATE["variables"]["properties"]) == ["env"]


@pytest.mark.usefixtures("server")
@pytest.mark.filterwarnings("ignore")
def test_runs_begin_in_the_folder_of_their_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In any working directory, with any PWD of the calling shell: `make -C`, an exec."""
    from prefect import get_client

    project, caller = tmp_path / "project", tmp_path / "caller"
    project.mkdir()
    caller.mkdir()
    deployments = write_greeting(project)
    monkeypatch.chdir(caller)
    monkeypatch.setenv("PWD", "/nowhere")
    deploy(Path(os.path.relpath(deployments)), gpu_slots=1)
    with get_client(sync_client=True) as client:
        (pull,) = client.read_deployment_by_name("greet/greeting").pull_steps or ()
    assert pull == {"prefect.deployments.steps.set_working_directory": {"directory": str(project)}}
