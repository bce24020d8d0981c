"""Kubernetes objects and compose service of `grpo serve`, against the real server and its command."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import uvicorn
import yaml

from grpo.config.serving import EngineSettings, ServeConfig, ServerSettings
from grpo.serving.access.guard import Authenticator
from grpo.serving.access.keys import KeyStore
from grpo.serving.engine.served_model import ServedModel
from grpo.serving.server import ServerPlaces, build_app, make_connections
from grpo_cli.serve import serve_config
from tests.grpo.serving.chat_servers import clerk
from tests.grpo.serving.metric_families import families
from tests.places import ROOT

DEPLOYMENTS = ROOT / "deployments"
OBJECTS = list(yaml.safe_load_all((DEPLOYMENTS / "kubernetes" / "serve.yaml").read_text(encoding="utf-8")))
COMPOSE = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8"))["services"]["serve"]
LATEST = int(kubernetes_validate.latest_version().split(".")[1])


def of_kind(kind: str) -> dict[str, Any]:
    (match,) = (document for document in OBJECTS if document["kind"] == kind)
    return dict(match["spec"])


POD = of_kind("Deployment")["template"]["spec"]
(CONTAINER,) = POD["containers"]


(SETTINGS,) = (document["data"]["serve.yaml"] for document in OBJECTS if document["kind"] == "ConfigMap")
SERVED = ServeConfig.model_validate(yaml.safe_load(SETTINGS))
COMPOSED = serve_config(str(DEPLOYMENTS / "serve.yaml"), None)


@pytest.mark.parametrize("minor", range(30, LATEST + 1))
def test_the_objects_are_valid_in_every_version(minor: int):
    for document in OBJECTS:
        kubernetes_validate.validate(document, f"1.{minor}", strict=True)


def test_both_serve_the_champion_by_a_file_of_settings():
    """With the same name of the model, from all addresses, and a file that the container has."""
    for settings in (SERVED, COMPOSED):
        assert (settings.model, settings.host) == ("models:/support-desk@champion", "0.0.0.0")
    assert CONTAINER["command"] == ["grpo", "serve", "/app/serve/serve.yaml"]
    (mount,) = (mount for mount in CONTAINER["volumeMounts"] if mount["mountPath"] == "/app/serve")
    (volume,) = (volume for volume in POD["volumes"] if volume["name"] == mount["name"])
    assert volume["configMap"]["name"] in {document["metadata"]["name"] for document in OBJECTS}
    assert COMPOSE["command"] == ["grpo", "serve", "/app/serve.yaml"]
    assert "./serve.yaml:/app/serve.yaml:ro" in COMPOSE["volumes"]


def test_a_pod_ends_after_its_running_turns():
    """preStop, drain and ten seconds for the end fit into the grace of pod and container."""
    (_, pause) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] >= int(pause) + SERVED.drain_s + 10
    assert int(COMPOSE["stop_grace_period"].removesuffix("s")) >= COMPOSED.drain_s + 10


def test_a_pod_computes_on_the_cpus_that_it_requests():
    """A node has more, which its other pods request."""
    assert str(SERVED.engine.threads) == CONTAINER["resources"]["requests"]["cpu"]


def test_scaling_disruption_and_network_are_of_the_same_pods(tmp_path: Path):
    """The autoscaler's target is the deployment and its metric one that the server exports, with one series a pod."""
    labels = of_kind("Deployment")["selector"]
    scaler = of_kind("HorizontalPodAutoscaler")
    (name,) = (document["metadata"]["name"] for document in OBJECTS if document["kind"] == "Deployment")
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    (metric,) = scaler["metrics"]
    exported = {family.name: family.labels for family in families(tmp_path)}
    assert exported[metric["pods"]["metric"]["name"]] == ()
    assert "replicas" not in of_kind("Deployment")  # it would be reset by every apply
    assert of_kind("PodDisruptionBudget")["selector"] == labels == of_kind("NetworkPolicy")["podSelector"]
    assert of_kind("Service")["selector"] == labels["matchLabels"]


def test_the_autoscaler_keeps_the_queues_short():
    """A load that grows fivefold in ten minutes, pods that take a minute to load: fewer than 5 turns wait at each.

    Kubernetes' rule every 15 s: desired = ceil(pods * mean / target), unless within a tenth of it.
    """
    scaler = of_kind("HorizontalPodAutoscaler")
    target = int(scaler["metrics"][0]["pods"]["target"]["averageValue"])
    concurrency = EngineSettings().concurrency
    ready, starting = scaler["minReplicas"], list[int]()
    longest = 0.0
    for step in range(80):  # of 15 s
        load = 80 + 320 * min(1.0, step / 40)
        ready += sum(since == step - 4 for since in starting)
        starting = [since for since in starting if since > step - 4]
        longest = max(longest, load / ready - concurrency)
        ratio = load / ready / target
        if abs(ratio - 1) > 0.1:
            desired = min(scaler["maxReplicas"], math.ceil(ready * ratio))
            starting += [step] * max(0, desired - ready - len(starting))
    assert longest < 5
    assert 400 / target <= ready <= scaler["maxReplicas"]


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[tuple[str, threading.Event, Any]]:
    """Address of a server whose version is loaded when the event is set, and its service."""
    load = threading.Event()

    def next_version(current: str) -> ServedModel | None:
        if current:
            return None
        load.wait()
        return clerk()

    settings = ServerSettings(watch_s=0.05)
    places = ServerPlaces(log=tmp_path / "log", budgets=tmp_path / "budgets.db")
    application, service = build_app(
        settings,
        places,
        next_version,
        Authenticator(KeyStore(tmp_path / "keys.json")),
        connections=make_connections(settings),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", load, service
        finally:
            load.set()
            server.should_exit = True
            thread.join()


def test_probes_are_answered_in_each_state(loading: tuple[str, threading.Event, Any]):
    """Loading and draining pods live and are not ready; the probes need no key."""
    url, load, service = loading
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}

    def statuses() -> list[int]:
        return [httpx.get(url + probes[name], timeout=60).status_code for name in probes]

    with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
        client.get(url + probes["liveness"], timeout=60)
    assert statuses() == [503, 503, 200]
    load.set()
    while not service.ready:
        threading.Event().wait(0.01)
    assert statuses() == [200, 200, 200]
    service.draining = True
    assert statuses() == [503, 503, 200]
    service.draining = False
