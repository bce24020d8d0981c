"""A real Prometheus scrapes a real server under load: every panel of the dashboard has data."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from grpo.config.serving import EngineSettings
from grpo.serving.requests.service import ServiceSettings
from tests.grpo.serving.chat_servers import ChatServer, chat_server, clerk
from tests.places import ROOT
from tests.ports import own_port

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed: apt-get install prometheus"),
]
CONFIG = ROOT / "deployments" / "prometheus" / "prometheus.yaml"
PANELS = json.loads((ROOT / "deployments" / "grafana" / "serving.json").read_text(encoding="utf-8"))["panels"]


def _configure(folder: Path, server: ChatServer) -> Path:
    """The shipped configuration with the server's address, and scrapes every 200 ms."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["global"]["scrape_interval"] = config["global"]["evaluation_interval"] = "200ms"
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
    (folder / "key").write_text(server.keys.create("prometheus", ("metrics",)))
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _load(server: ChatServer) -> None:
    """Conversations of two turns, some more than the server admits, and feedback."""
    client = server.client()

    def talk(number: int) -> None:
        messages: list[Any] = [{"role": "user", "content": f"Where is my order {number}?"}]
        try:
            reply = client.chat.completions.create(model="clerk", messages=messages, seed=number)
            messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "Thanks."}]
            client.chat.completions.create(model="clerk", messages=messages, seed=number)
        except openai.InternalServerError:
            return
        body = {"conversation_id": reply.conversation_id, "rating": 1, "success": True}  # type: ignore[attr-defined]
        answer = httpx.post(f"{server.url}/v1/feedback", json=body, headers=server.headers(), timeout=60)
        assert answer.status_code == 200

    talk(0)  # alone, so that it is admitted
    with ThreadPoolExecutor(16) as pool:  # more than the six that are admitted
        list(pool.map(talk, range(1, 41)))


def _values(url: str, expression: str) -> list[float]:
    query = {"query": expression.replace("$__rate_interval", "30s")}
    answer = httpx.get(f"{url}/api/v1/query", params=query, timeout=60).json()
    assert answer["status"] == "success", answer
    values = [float(series["value"][1]) for series in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


def _has_data(url: str, expression: str) -> bool:
    """Wait until an expression has a value; Prometheus scrapes by itself."""
    deadline = time.monotonic() + 240
    while not (values := _values(url, expression)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(values)


def test_every_panel_has_data_after_a_load_and_no_alert_fires(tmp_path: Path):
    """The server is of the tiny model, with a champion of an hour ago and a retraining's report."""
    served = replace(clerk(), registered=time.time() - 3600)
    weekly = tmp_path / "weekly"
    weekly.mkdir()
    report = {"verdict": "promote", "triggers": {"curation": {"records": 40, "accepted": 30}}}
    (weekly / "retraining.json").write_text(json.dumps(report))
    with chat_server(
        tmp_path,
        lambda current: None if current else served,
        engine=EngineSettings(concurrency=2),
        service=ServiceSettings(max_requests=6),
    ) as server:
        port = own_port()
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={_configure(tmp_path, server)}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ]
        )
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=60) as client:
                client.get(f"{url}/-/healthy")
            assert _has_data(url, "up == 1")
            httpx.get(f"{server.url}/v1/models", headers=server.headers(), timeout=60)
            _load(server)
            expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
            assert [expression for expression in expressions if not _has_data(url, expression)] == []
            assert max(_values(url, "vllm:num_requests_running")) <= 2
            (age,) = _values(url, "time() - grpo_champion_registered_timestamp_seconds")
            assert 3600 <= age < 7200
            refused = _values(url, 'vllm:admission_rejections_total{reason="requests"}')
            answered = _values(url, 'http_requests_total{route="/v1/chat/completions", code="200"}')
            assert min(*refused, *answered) > 0
            alerts = httpx.get(f"{url}/api/v1/alerts", timeout=60).json()["data"]["alerts"]
            assert [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"] == []
        finally:
            process.terminate()
            process.wait()
