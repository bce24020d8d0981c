"""Volumes of everything in which a retraining may execute, in all manifests and work pools together.

A flow run executes in a worker of compose or Kubernetes, or in a container or job that a template of
`deployments/work_pools` describes. Wherever it does, it has to read the log of the servers, and to write its report
where they read it.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from tests.deployments.test_manifests import DEPLOYMENTS, compose, named, pods, served_settings
from tests.places import ROOT

HOME = "/app/runs"
Mounts = dict[str, tuple[str, bool]]
"""Claim at each path of a pod, and True if the pod may write to it."""


def templates(kind: str) -> dict[str, dict[str, Any]]:
    """Templates of the work pools of a kind, by their names."""
    paths = sorted((DEPLOYMENTS / "work_pools").glob(f"{kind}-*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def mounts(pod: dict[str, Any]) -> Mounts:
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    (container,) = pod["containers"]
    return {
        mount["mountPath"]: (claims[mount["name"]], not mount.get("readOnly", False))
        for mount in container["volumeMounts"]
        if mount["name"] in claims
    }


def pods_of_flow_runs() -> dict[str, dict[str, Any]]:
    """Pods of workers, and pods of the jobs that workers start, by their names."""
    workers = {name: pod for name, pod in pods() if "--pool" in pod["containers"][0]["command"]}
    jobs = {
        name: template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
        for name, template in templates("kubernetes").items()
    }
    return {**workers, **jobs}


def test_a_retraining_in_any_pod_reads_the_log_and_writes_its_report_where_servers_read_it():
    """Both folders are claims that several nodes write to, at the same place in servers, workers and jobs."""
    config = yaml.safe_load((ROOT / "data" / "configs" / "retrain.yaml").read_text(encoding="utf-8"))
    assert {"kind": "served"} in config["conversations"]  # in the home, at /app/runs/served
    served = served_settings()
    assert served.log == f"{HOME}/served"
    assert str(served.keys).startswith(f"{served.log}/")
    server = named("Deployment", "serve")["spec"]["template"]["spec"]
    (mounted,) = (mount for mount in server["containers"][0]["volumeMounts"] if mount["name"] == "settings")
    assert server["containers"][0]["command"][-1] == f"{mounted['mountPath']}/serve.yaml"

    places = {served.log: ("serving", True), f"{HOME}/{config['name']}": ("retraining", True)}
    assert mounts(server).items() >= places.items()
    runs = {name: mounts(pod) for name, pod in pods_of_flow_runs().items()}
    assert set(runs) == {"worker-cpu", "worker-gpu", "kubernetes-cpu", "kubernetes-gpu"}
    assert {name: {path: run.get(path) for path in places} for name, run in runs.items()} == dict.fromkeys(runs, places)
    for claim, _ in places.values():
        assert named("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_retraining_in_any_container_has_the_home_of_the_server():
    """Compose names its volumes after its project, and the templates of Docker name these."""
    services = compose()["services"]
    (home,) = (volume for volume in services["serve"]["volumes"] if volume.endswith(f":{HOME}"))
    workers = {name: service for name, service in services.items() if "--pool" in service.get("command", ())}
    assert {name: home in worker["volumes"] for name, worker in workers.items()} == {"worker": True, "worker-gpu": True}
    project = compose()["name"]
    defaults = [template["variables"]["properties"]["volumes"]["default"] for template in templates("docker").values()]
    assert defaults == [[f"{project}_{home}"], [f"{project}_{home}"]]
