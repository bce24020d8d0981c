"""What prefect.yaml deploys."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows.deployment import plan
from flows.local import settings
from grpo.config.pipeline import load_config
from tests.places import ROOT

DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    path, _, name = deployment["entrypoint"].partition(":")
    found = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert isinstance(found, Flow)
    return found


def name_of(deployment: dict[str, Any]) -> str:
    return f"{Path(deployment['entrypoint'].partition(':')[0]).stem}/{deployment['name']}"


def test_the_deployments_of_the_pipeline_are_there():
    """One a job."""
    names = {"train/quickstart", "train/default", "retrain/nightly", "tune/default", "evaluate/champion"}
    assert {name_of(one) for one in DEPLOYMENTS} >= names | {
        "watch/hourly",
        "promote/manual",
        "rollback/manual",
        "pretrain/tiny",
        "stage/gpu",
    }


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=name_of)
def test_a_deployment_gives_its_flow_what_it_takes(deployment: dict[str, Any]):
    """Each parameter is one of the flow's, and what the file of its step holds passes its checks."""
    flow = flow_of(deployment)
    given = dict(deployment["parameters"])
    assert set(given) <= set(inspect.signature(flow.fn).parameters)
    (step,) = (one["flows.deployment.plan"] for one in deployment["build"])
    if given.get("config") == "{{ plan.config }}":
        given["config"] = plan(**{name: value for name, value in step.items() if name != "id"})["config"]
        schema = parameter_schema(flow).model_dump_for_openapi()
        validate(given, schema, raise_on_error=True, preprocess=True, ignore_required=True)  # as Prefect's server does
    asked = {"reason": "a test", "stage": "rollout", "inputs": {}, "sources": "x"}  # what the form asks for
    taken = {name: value for name, value in asked.items() if name in inspect.signature(flow.fn).parameters}
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
def test_a_deployment_says_what_it_is_and_runs_quietly_in_a_pool(deployment: dict[str, Any]):
    """A description, one of the pools, and the environment that `settings` has for every process."""
    assert deployment["description"].endswith(".")
    assert deployment["work_pool"]["name"] in ("cpu", "gpu")
    trains = flow_of(deployment).name in ("train", "retrain", "tune", "pretrain")
    assert deployment["work_pool"].get("work_queue_name") == ("training" if trains else None)
    assert deployment["work_pool"]["job_variables"] == {"env": "{{ plan.environment }}"}
    assert plan()["environment"] == settings.quiet()


@pytest.mark.parametrize("deployment", [one for one in DEPLOYMENTS if "schedules" in one], ids=name_of)
def test_a_schedule_can_be_paused_for_good(deployment: dict[str, Any]):
    """It has a name, by which it is known when it is deployed again, and does not insist on being active."""
    for schedule in deployment["schedules"]:
        assert schedule["slug"]
        assert "active" not in schedule


def test_the_config_of_a_deployment_is_the_whole_file():
    """With what it extends: the default deployment has the quickstart's scenarios and its own samples."""
    config = plan(str(ROOT / "data" / "configs" / "default.yaml"))["config"]
    default, quickstart = (
        load_config(ROOT / "data" / "configs" / f"{name}.yaml") for name in ("default", "quickstart")
    )
    assert type(default).model_validate(config) == default
    assert (default.scenarios, default.evaluation.samples) == (quickstart.scenarios, 2)
