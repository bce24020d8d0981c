"""Compose file, image and Kubernetes manifests: they fit each other, the project and the programs that they start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prefect.settings import Settings
from prefect.settings.legacy import _get_settings_fields

from grpo.config.pipeline import load_config
from grpo.config.serving import ServeConfig
from grpo_cli.serve import serve_config
from grpo_local.deployments import POOLS
from grpo_local.login import HOSTS, PASSWORD, USERNAME
from tests.places import ROOT

DEPLOYMENTS = ROOT / "deployments"
KUBERNETES = DEPLOYMENTS / "kubernetes"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN_IMAGES = ("grpo", "grpo-gpu")
LONG_LIVED = ("Deployment", "StatefulSet")
READ_BY_OTHERS = {
    *("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),  # boto3 and s3fs
    *("POSTGRES_USER", "POSTGRES_PASSWORD", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD"),  # their images
    *("PIP_NO_CACHE_DIR", "PIP_DISABLE_PIP_VERSION_CHECK", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"),
    *("GPU_SLOTS", "GRPO_NOTIFY_URL", "GRPO_SIGNING_KEY", "GRPO_SERVE_DATABASE"),  # grpo
    *("GRPO_STORE",),  # the command of the deploy job
    *(
        "HOME",
        "GRPO_HOME",
        "GX_ANALYTICS_ENABLED",
        "HF_HUB_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
        "TRANSFORMERS_OFFLINE",
    ),
    *("DO_NOT_TRACK",),
}
TRACKING = "MLFLOW_TRACKING_URI"
SECRET = re.compile(
    r"PASSWORD|SECRET|ACCESS_KEY|_USER$|CONNECTION_URL|BACKEND_STORE_URI|AUTH_STRING|SIGNING_KEY|SERVE_DATABASE"
)


@cache
def documents() -> tuple[dict[str, Any], ...]:
    """Every object that `kubectl apply -k` makes."""
    (listed,) = yaml.safe_load_all((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    return tuple(
        document
        for name in listed["resources"]
        for document in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8"))
    )


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents() if document["kind"] in kinds]


def named(kind: str, name: str) -> dict[str, Any]:
    (match,) = (document for document in of_kind(kind) if document["metadata"]["name"] == name)
    return match


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for document in of_kind(*LONG_LIVED, "Job"):
        yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{name}/{container['name']}", container


def probes(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [container[name]["httpGet"] for name in container if name.endswith("Probe")]


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    """Every set of variables that a file gives to a process, by its place; a reference counts as its name."""
    for name, service in compose()["services"].items():
        yield f"compose {name}", service.get("environment", {})
    for name, container in containers():
        yield f"kubernetes {name}", {one["name"]: one.get("value", "") for one in container.get("env", ())}
    yield "kubernetes settings", named("ConfigMap", "grpo-settings")["data"]
    image = (DEPLOYMENTS / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^ENV (.*)$", image, flags=re.MULTILINE):
        yield "Dockerfile", dict(re.findall(r"(\w+)=(\S+)", line))


# --- Kubernetes


@pytest.mark.parametrize(
    "document", documents(), ids=lambda document: f"{document['kind']}-{document['metadata']['name']}"
)
def test_an_object_is_what_the_api_server_takes(document: dict[str, Any]):
    """Checked against the schemas of Kubernetes: unknown fields and wrong types are refused."""
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_every_manifest_is_applied():
    """No file lies beside the kustomization unused; objects are in its namespace."""
    (listed,) = yaml.safe_load_all((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {path.name for path in KUBERNETES.iterdir()} == {*listed["resources"], "kustomization.yaml"}
    assert {one["metadata"].get("namespace") for one in documents() if one["kind"] != "Namespace"} == {"grpo"}
    assert listed["namespace"] == named("Namespace", "grpo")["metadata"]["name"]
    assert {image["name"] for image in listed["images"]} == set(OWN_IMAGES)


def test_a_deployment_finds_its_pods():
    """The selector is among the labels of the template."""
    for deployment in of_kind(*LONG_LIVED):
        wanted = deployment["spec"]["selector"]["matchLabels"].items()
        assert wanted <= deployment["spec"]["template"]["metadata"]["labels"].items(), deployment["metadata"]["name"]


def test_a_service_leads_to_one_deployment_and_a_port_that_it_opens():
    """No service is a dead end."""
    for service in of_kind("Service"):
        selector = service["spec"]["selector"].items()
        (deployment,) = (
            one for one in of_kind(*LONG_LIVED) if selector <= one["spec"]["template"]["metadata"]["labels"].items()
        )
        opened = {
            port["name"]: port for one in deployment["spec"]["template"]["spec"]["containers"] for port in one["ports"]
        }
        for port in service["spec"]["ports"]:
            assert opened[port["targetPort"]]["containerPort"] == port["port"]


def test_addresses_name_services_and_their_ports():
    """Addresses of workers are those of the servers."""
    variables = named("ConfigMap", "grpo-settings")["data"]
    for variable, path in (("PREFECT_API_URL", "/api"), ("MLFLOW_TRACKING_URI", "")):
        host, port = re.fullmatch(rf"http://([a-z]+):(\d+){path}", variables[variable]).groups()  # type: ignore[union-attr]
        assert [one["port"] for one in named("Service", host)["spec"]["ports"]] == [int(port)]


def test_a_probe_asks_a_port_that_the_program_listens_on():
    """The port of the probe is opened, and is the one of the program's variables."""
    listening = {
        "prefect": "PREFECT_SERVER_API_PORT",
        "mlflow": "MLFLOW_PORT",
        "worker": "PREFECT_WORKER_WEBSERVER_PORT",
    }
    variables = named("ConfigMap", "grpo-settings")["data"]
    for name, container in containers():
        opened = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        for probe in probes(container):
            own = {one["name"]: one.get("value") for one in container["env"]}
            if container["name"] == "serve":
                assert served_settings().port == opened[probe["port"]]
            else:
                assert str(opened[probe["port"]]) == {**variables, **own}[listening[container["name"]]], name


def test_long_lived_processes_are_probed():
    """A server or worker that hangs is noticed."""
    for deployment in of_kind(*LONG_LIVED):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "livenessProbe"} <= container.keys()


def test_leases_of_slots_outlive_the_pod_of_the_server():
    """The count of taken slots lies in PostgreSQL; were its leases gone with the pod, a slot would stay taken."""
    ((_, pod),) = [(name, pod) for name, pod in pods() if name == "prefect"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert str(variables["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]).endswith(".filesystem")
    kept = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/app/runs"]
    assert [volume["name"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume] == kept


def test_references_resolve():
    """Volumes, claims and settings that a pod names are there; secrets are those that the operator makes."""
    claims = {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
    manual = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    own = {
        one["metadata"]["name"]: {claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]}
        for one in of_kind("StatefulSet")
    }
    for name, pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]} | own.get(name, set())
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v
        } <= claims
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, name
            assert all(one["configMapRef"]["name"] == "grpo-settings" for one in container.get("envFrom", ()))
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    secret = variable["valueFrom"]["secretKeyRef"]
                    assert f"create secret generic {secret['name']} " in manual
                    assert f"--from-literal={secret['key']}=" in manual, secret


def test_pods_are_confined():
    """Not root, no more rights than it started with, no token for the cluster, and requests for the scheduler."""
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["automountServiceAccountToken"] is False, name
    for name, container in containers():
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert "memory" in container["resources"]["limits"], name
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name


def test_what_a_program_writes_is_on_a_volume():
    """Of a read-only root: the home, the user's folder with the caches of packages, and files for the moment."""
    image = (DEPLOYMENTS / "Dockerfile").read_text(encoding="utf-8")
    assert "HOME=/app/user" in image
    assert "GRPO_HOME=/app/runs" in image
    for name, container in containers():
        assert {"/app/runs", "/app/user", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}, name


def served_settings() -> ServeConfig:
    """Settings of the server in the cluster, which a pod reads as a file."""
    return ServeConfig.model_validate(yaml.safe_load(named("ConfigMap", "grpo-serve")["data"]["serve.yaml"]))


def test_runs_use_the_store_and_the_gpus_of_the_cluster():
    """What the deploy job lays over every config: a bucket of the settings, stages for a pool with workers."""
    (container,) = named("Job", "deploy")["spec"]["template"]["spec"]["containers"]
    settings = named("ConfigMap", "grpo-settings")["data"]
    sets = [value for option, value in pairwise(container["command"]) if option == "--set"]
    laid = [re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], text) for text in sets]
    config = load_config(ROOT / "data" / "configs" / "quickstart.yaml", tuple(laid))
    assert config.store.startswith("s3://")
    assert config.compute.gpu_stages is not None
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
    names = {f"{one['entrypoint'].split('.')[-2]}/{one['name']}": one["work_pool"]["name"] for one in deployments}
    pool = names[config.compute.gpu_stages.deployment]
    (worker,) = named("StatefulSet", "worker-gpu")["spec"]["template"]["spec"]["containers"]
    started = dict(pairwise(worker["command"]))
    assert (started["--pool"], started["--limit"]) == (pool, "1")


def test_workers_scale_and_a_drain_takes_one_at_a_time():
    """Each pod has volumes of its own; what several need is in the store."""
    for name in ("worker-cpu", "worker-gpu"):
        worker = named("StatefulSet", name)["spec"]
        assert all(one["spec"]["accessModes"] == ["ReadWriteOnce"] for one in worker["volumeClaimTemplates"])
        assert named("PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
        assert named("Service", worker["serviceName"])["spec"]["clusterIP"] == "None"


def test_pods_reach_only_what_they_need():
    """Names, each other, databases and TLS; not the metadata of the cloud, which hands out credentials."""
    policy = named("NetworkPolicy", "own-pods-only")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (outside,) = (rule for rule in policy["egress"] if "ipBlock" in rule["to"][0])
    assert outside["to"][0]["ipBlock"]["except"] == ["169.254.0.0/16"]
    assert {port["port"] for port in outside["ports"]} == {443, 5432}


def test_service_names_set_no_variables():
    """Kubernetes would put MLFLOW_PORT=tcp://… into every pod beside a service called mlflow, and MLflow reads it."""
    assert all(pod["enableServiceLinks"] is False for _, pod in pods())


def test_the_gpu_worker_gets_a_device_and_no_other_does():
    """It is placed on nodes that have one, and asks for it."""
    for name, pod in pods():
        asks = any("nvidia.com/gpu" in one["resources"].get("limits", {}) for one in pod["containers"])
        assert asks == ("nvidia.com/gpu.present" in pod.get("nodeSelector", {})) == (name == "worker-gpu")


# --- compose


def test_services_wait_for_services_that_can_become_what_they_wait_for():
    """Healthy needs a check, completed needs an end."""
    services = compose()["services"]
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            needed = {"service_healthy": "healthcheck", "service_completed_successfully": "restart"}[
                wanted["condition"]
            ]
            assert needed in services[other], f"{name} waits for {other}"
            if needed == "restart":
                assert services[other]["restart"] == "no"


def test_volumes_and_files_are_there():
    """A named volume is declared and used, a file that is mounted exists."""
    used = set()
    for service in compose()["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOYMENTS / source).is_file(), source
            else:
                used.add(source)
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert used == set(compose()["volumes"])


def test_ports_are_for_this_machine_only():
    """Nothing is published beyond loopback."""
    published = [port for service in compose()["services"].values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:4200:4200", "127.0.0.1:5000:5000", "127.0.0.1:8000:8000"]


def test_hosts_in_addresses_are_services():
    """And their ports those on which these listen."""
    listening = {"postgres": "5432", "minio": "9000", "prefect": "4200", "mlflow": "5000"}
    services = compose()["services"]
    assert listening["prefect"] == services["prefect"]["environment"]["PREFECT_SERVER_API_PORT"]
    assert listening["mlflow"] == services["mlflow"]["environment"]["MLFLOW_PORT"]
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            for host, port in re.findall(r"(?://|@)(?!localhost)([a-z]+):(\d+)", value):
                assert listening[host] == port, f"{name}: {variable}"


def test_databases_in_addresses_are_made():
    """Each in the script that PostgreSQL runs at its first start; no two services share one."""
    made = re.findall(r"CREATE DATABASE (\w+);", (DEPLOYMENTS / "postgres" / "databases.sql").read_text())
    values = [value for service in compose()["services"].values() for value in service.get("environment", {}).values()]
    assert set(re.findall(r"@postgres:5432/(\w+)", " ".join(values))) == {"prefect", "mlflow", "serving"} <= set(made)


def test_health_checks_ask_the_port_that_is_listened_on():
    """The check of a server asks its own port, the check of a worker Prefect's default."""
    asked = {
        name: re.findall(r"http://127\.0\.0\.1:(\d+)(/\S*)'", service["healthcheck"]["test"][-1])
        for name, service in compose()["services"].items()
        if "grpo" in service["image"] and "healthcheck" in service
    }
    worker = [(str(Settings().worker.webserver.port), "/health")]
    assert asked == {
        "prefect": [("4200", "/api/health")],
        "mlflow": [("5000", "/health")],
        "worker": worker,
        "worker-gpu": worker,
        "serve": [("8000", "/ready")],
    }
    assert serve_config(str(DEPLOYMENTS / "serve.yaml"), None).port == 8000


# --- both, and the image


@pytest.mark.filterwarnings("ignore")  # MLflow's command line warns of its own types when it is imported
def test_every_variable_is_read():
    """A misspelt name would be ignored in silence."""
    import mlflow.environment_variables
    from mlflow.cli import server as mlflow_server

    prefect = set(_get_settings_fields(Settings))
    tracking = {name for name in vars(mlflow.environment_variables) if name.startswith("MLFLOW_")}
    tracking |= {option.envvar for option in mlflow_server.params if option.envvar}
    for place, variables in environments():
        assert set(variables) <= prefect | tracking | READ_BY_OTHERS, place


def test_no_secret_stands_in_a_file():
    """Passwords, keys and addresses that hold them come from the environment or from a secret."""
    assert not of_kind("Secret")
    for place, variables in environments():
        for name, value in variables.items():
            if SECRET.search(name) and name not in ("POSTGRES_USER",):
                assert not value or re.search(r"\$\{\w+:\?[^}]+\}", value), f"{place}: {name}"


def test_what_compose_asks_for_is_in_the_example():
    """The file to fill in has every name, and no value."""
    asked = set(re.findall(r"\$\{(\w+):[?-]", (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")))
    lines = (DEPLOYMENTS / "environment.example").read_text(encoding="utf-8").splitlines()
    assert {line for line in lines if line and not line.startswith("#")} == {f"{name}=" for name in asked}


def test_clients_of_prefect_have_its_login():
    """Server and clients are given the same secret, in compose and in Kubernetes; no other service has it."""
    services = {name: service.get("environment", {}) for name, service in compose()["services"].items()}
    server, client = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
    assert [name for name, variables in services.items() if server in variables] == ["prefect"]
    assert {variables[client] for variables in services.values() if "PREFECT_API_URL" in variables} == {
        services["prefect"][server]
    }
    secrets = {
        name: {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
        for name, container in containers()
    }
    assert [name for name, variables in secrets.items() if server in variables] == ["prefect/prefect"]
    callers = {name for name, container in containers() if "envFrom" in container}
    assert {name for name, variables in secrets.items() if client in variables} == callers
    assert {str(variables[client]) for name, variables in secrets.items() if name in callers} == {
        str(secrets["prefect/prefect"][server])
    }


def test_clients_of_mlflow_have_its_login():
    """Server and clients are given the same user and the same secret, in compose and in Kubernetes.

    Compose does not start without the password. The containers that talk to the database themselves have none.
    """
    server = ["python", "-m", "grpo_local.mlflow_server.app"]
    services = compose()["services"]
    callers = {
        name for name, one in services.items() if one.get("environment", {}).get(TRACKING, "").startswith("http:")
    }
    (mlflow,) = (name for name, one in services.items() if one.get("command") == server)
    given = {name: one["environment"] for name, one in services.items() if PASSWORD in one.get("environment", {})}
    assert set(given) == callers | {mlflow}
    assert {(variables[USERNAME], variables[PASSWORD]) for variables in given.values()} == {
        ("grpo", "${MLFLOW_PASSWORD:?fill in deployments/.env}")
    }
    told = {name: {one["name"]: one for one in container["env"]} for name, container in containers()}
    callers = {name for name, container in containers() if "envFrom" in container}
    assert {name for name, variables in told.items() if PASSWORD in variables} == callers | {"mlflow/mlflow"}
    assert dict(containers())["mlflow/mlflow"]["command"] == server
    secrets = [variables[PASSWORD]["valueFrom"]["secretKeyRef"] for variables in told.values() if PASSWORD in variables]
    assert all(secret == {"name": "grpo-login", "key": "mlflow"} for secret in secrets)
    assert told["mlflow/mlflow"][USERNAME]["value"] == named("ConfigMap", "grpo-settings")["data"][USERNAME] == "grpo"


def test_no_container_starts_a_server_that_asks_for_no_login():
    """Neither by the command of MLflow nor by the one of Prefect."""
    commands = [service["command"] for service in compose()["services"].values() if "command" in service]
    commands += [container["command"] for _, container in containers()]
    assert not [command for command in commands if command[:2] in (["mlflow", "server"], ["prefect", "server"])]


def test_mlflow_is_called_by_addresses_that_it_answers_to():
    """By its clients and by the probes, which would name the pod's address."""
    composed = compose()["services"]["mlflow"]["environment"][HOSTS].split(",")
    container = dict(containers())["mlflow/mlflow"]
    (applied,) = (one["value"].split(",") for one in container["env"] if one["name"] == HOSTS)
    assert composed == applied
    assert {"mlflow:5000", "127.0.0.1:5000"} <= set(applied)
    assert [probe["httpHeaders"] for probe in probes(container)] == [[{"name": "Host", "value": "mlflow:5000"}]] * 3


def test_prefect_is_called_by_addresses_that_it_answers_to():
    """By workers, by its own page, and by the probes, which would name the pod's address."""
    composed = compose()["services"]["prefect"]["environment"]
    ((_, container),) = [(name, one) for name, one in containers() if name == "prefect/prefect"]
    applied = {one["name"]: one.get("value") for one in container["env"]}
    for variables in (composed, applied):
        own = variables["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
        for address in (variables["PREFECT_SERVER_UI_API_URL"], "http://prefect:4200/api"):
            assert address.removesuffix("/api") in own
    for probe in probes(container):
        (header,) = probe["httpHeaders"]
        assert (header["name"], f"http://{header['value']}") in {("Host", origin) for origin in own}


def test_images_are_pinned():
    """By their exact version; the project's own is the version of the project."""
    base = re.findall(r"^FROM (\S+)", (DEPLOYMENTS / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    used = [service["image"] for service in compose()["services"].values()] + [one["image"] for _, one in containers()]
    for image in (*base, *used):
        name, _, tag = image.rpartition(":")
        if name in OWN_IMAGES:
            assert tag == PROJECT["version"]
        else:
            assert re.match(r"RELEASE\.|\d+\.\d+", tag), image


def test_the_image_installs_existing_extras_and_runs_without_privileges():
    """Its extras are in pyproject.toml, and its user is that of the pods."""
    image = (DEPLOYMENTS / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^ARG EXTRAS=([\w,]+)$", image, flags=re.MULTILINE)
    assert 'pip install --constraint constraints.txt --editable ".[${EXTRAS}]"' in image
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    constraints = (DEPLOYMENTS.parent / "constraints.txt").read_text(encoding="utf-8")
    assert '"$(grep ^torch== constraints.txt)"' in image
    assert len(re.findall(r"^torch==", constraints, flags=re.MULTILINE)) == 1
    (user,) = re.findall(r"^USER (\d+)$", image, flags=re.MULTILINE)
    assert f"--uid {user}" in image
    assert {pod["securityContext"]["runAsUser"] for _, pod in pods()} == {int(user)}


def test_the_image_holds_what_runs_need():
    """Ignored files are not part of the program, and neither secrets nor runs are copied."""
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not {"flows", "tasks", "grpo", "data", "deployments", "prefect.yaml", "pyproject.toml"} & set(left_out)
    assert {".git", "runs", "deployments/.env"} <= set(left_out)


def test_workers_serve_the_pools_that_are_made():
    """Each pool of `grpo deploy` has a worker, in both ways of deploying."""
    commands = [service["command"] for service in compose()["services"].values() if "command" in service]
    commands += [container["command"] for _, container in containers()]
    served = [command[command.index("--pool") + 1] for command in commands if "--pool" in command]
    assert sorted(served) == sorted(POOLS * 2)


def test_commands_of_the_project_exist():
    """`grpo …` in a container is a command of this version."""
    from grpo_cli.app import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    commands = [service["command"] for service in compose()["services"].values() if "command" in service]
    commands += [container["command"] for _, container in containers()]
    own = [command[1] for command in commands if command[0] == "grpo"]
    assert own
    assert set(own) <= known
    for script in (command[1] for command in commands if command[0] == "sh"):
        assert (ROOT / script).is_file()
