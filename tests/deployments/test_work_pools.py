"""The job templates of Docker and Kubernetes work pools, held against what the workers take."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from importlib.resources import files
from typing import Any
from unittest.mock import AsyncMock

import jsonschema
import kubernetes_validate
import pytest
from docker.types import HostConfig
from prefect.client.orchestration import PrefectClient
from prefect.utilities.templating import apply_values, find_placeholders
from prefect.workers.base import BaseJobConfiguration

from tests.places import ROOT

FOLDER = ROOT / "deployments" / "work_pools"
TEMPLATES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
SECRETS = {
    "AWS_ACCESS_KEY_ID": "grpo-store",
    "AWS_SECRET_ACCESS_KEY": "grpo-store",
    "MLFLOW_TRACKING_PASSWORD": "grpo-login",
    "GRPO_SIGNING_KEY": "grpo-login",
}
"""Variables with secrets, and the secret of Kubernetes that holds each."""


def _fields(name: str) -> dict[str, Any]:
    return TEMPLATES[name]["variables"]["properties"]


def _made(name: str, **values: Any) -> dict[str, Any]:
    """Template of a flow run, rendered as a worker of this pool does."""
    defaults = {key: field["default"] for key, field in _fields(name).items() if "default" in field}
    given = {"name": "run", **defaults, **values}
    return apply_values(deepcopy(TEMPLATES[name]["job_configuration"]), given)


def _shipped_by_prefect(name: str) -> dict[str, Any]:
    """The template that Prefect itself gives a pool of this type."""
    views = files("prefect.server.api.collections_data") / "views" / "aggregate-worker-metadata.json"
    kind = name.split("-")[0]
    return json.loads(views.read_text())[f"prefect-{kind}"][kind]["default_base_job_configuration"]


def _paths(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return {path for key, item in value.items() for path in _paths(item, f"{prefix}/{key}")}


def test_both_pools_have_a_template_for_both_kinds():
    """CPU and GPU, Docker and Kubernetes."""
    assert set(TEMPLATES) == {"docker-cpu", "docker-gpu", "kubernetes-cpu", "kubernetes-gpu"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_variables_are_a_schema_that_their_defaults_obey(name: str):
    """A form can be made of them, each field labelled, and what it starts with may be sent."""
    jsonschema.Draft202012Validator.check_schema(TEMPLATES[name]["variables"])
    for field in _fields(name).values():
        assert field["title"]
        assert field["description"].endswith(".")
        if "default" in field:
            jsonschema.validate(field["default"], field)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_placeholder_is_a_variable_and_every_variable_is_read(name: str):
    """Nothing stays unfilled, and no field of the form does nothing."""
    job = TEMPLATES[name]["job_configuration"]
    read = {found.name for found in find_placeholders(job)}
    merged = {"env"} if isinstance(job["env"], dict) else set()  # the worker lays a run's variables over these
    assert read | merged == set(_fields(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_flow_run_names_no_command(name: str):
    """Neither a variable nor a key of the job is one, and a run that brings its own is refused."""
    assert "command" not in {found.name for found in find_placeholders(TEMPLATES[name]["job_configuration"])}
    schema = jsonschema.Draft202012Validator(TEMPLATES[name]["variables"])
    assert not schema.is_valid({"command": "touch /tmp/here"})
    assert schema.is_valid({"image": "grpo:0.1.0"})


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_worker_takes_every_key(name: str):
    """A key that its configuration does not have would be dropped in silence."""
    known = set(_shipped_by_prefect(name)["job_configuration"])
    known |= {"container_create_kwargs"} if name.startswith("docker") else set()  # prefect-docker from 0.7
    assert set(TEMPLATES[name]["job_configuration"]) <= known


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_server_takes_the_template(name: str):
    """The real server checks it when the pool is made."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        pool = client.create_work_pool(
            WorkPoolCreate(name=f"of-{name}", type=name.split("-")[0], base_job_template=TEMPLATES[name])
        )
    assert pool.base_job_template == TEMPLATES[name]


@pytest.mark.parametrize("name", ["docker-cpu", "docker-gpu"])
def test_docker_gets_credentials_from_the_worker(name: str, monkeypatch: pytest.MonkeyPatch):
    """The worker fills them in from its own environment; what a deployment adds leaves them as they are."""
    for key in SECRETS:
        monkeypatch.setenv(key, f"value of {key}")
    given = {"env": {"GRPO_HOME": "/elsewhere"}}
    made = asyncio.run(
        BaseJobConfiguration.from_template_and_values(TEMPLATES[name], given, client=AsyncMock(spec=PrefectClient))
    )
    assert made.env == {
        "MLFLOW_TRACKING_URI": "http://mlflow:5000",
        "MLFLOW_TRACKING_USERNAME": "grpo",
        "MLFLOW_TRACKING_PASSWORD": "value of MLFLOW_TRACKING_PASSWORD",
        "AWS_ENDPOINT_URL_S3": "http://minio:9000",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "value of AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY": "value of AWS_SECRET_ACCESS_KEY",
        "GRPO_SIGNING_KEY": "value of GRPO_SIGNING_KEY",
        "GRPO_HOME": "/elsewhere",
    }


@pytest.mark.parametrize("name", ["kubernetes-cpu", "kubernetes-gpu"])
def test_kubernetes_gets_credentials_from_a_secret(name: str):
    """Neither the template nor Prefect's server has them."""
    container = _made(name)["job_manifest"]["spec"]["template"]["spec"]["containers"][0]
    sources = {item["name"]: item.get("valueFrom", {}) for item in container["env"]}
    assert {key: sources[key]["secretKeyRef"]["name"] for key in SECRETS} == SECRETS


@pytest.mark.parametrize("name", ["docker-cpu", "docker-gpu"])
def test_docker_takes_the_host_settings(name: str):
    """Shared memory in bytes; two devices for a run that asks for two, none on the CPU pool."""
    settings = _made(name, shm_size="2g", **({"gpus": 2} if name == "docker-gpu" else {}))["container_create_kwargs"]
    host = HostConfig(version="1.44", **settings)
    assert host["ShmSize"] == 2 * 2**30
    assert [request["Count"] for request in host.get("DeviceRequests", [])] == ([2] if name == "docker-gpu" else [])


@pytest.mark.parametrize("name", ["kubernetes-cpu", "kubernetes-gpu"])
def test_kubernetes_takes_the_job(name: str):
    """Every field is of the Job's schema, those aside that Prefect's worker itself puts into the pod."""
    made = _made(name)["job_manifest"]
    for key in ("parallelism", "completions"):
        del made["spec"]["template"]["spec"][key]
    made["spec"]["template"]["spec"]["containers"][0]["args"] = ["prefect", "flow-run", "execute"]
    kubernetes_validate.validate(made, "1.31", strict=True)
    limits = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == (1 if name == "kubernetes-gpu" else None)


@pytest.mark.parametrize("name", ["kubernetes-cpu", "kubernetes-gpu"])
def test_the_job_has_what_the_worker_insists_on(name: str):
    """Prefect's worker refuses a manifest without these paths."""
    pod = {"parallelism": 1, "completions": 1, "restartPolicy": "Never", "containers": [{"name": "prefect-job"}]}
    wanted = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"labels": {}}, "spec": {"template": {"spec": pod}}}
    made = _made(name)["job_manifest"]
    assert _paths(wanted) <= _paths(made)
    job = made["spec"]["template"]["spec"]
    assert (job["parallelism"], job["completions"], job["restartPolicy"]) == (1, 1, "Never")
    assert job["containers"][0]["name"] == "prefect-job"
