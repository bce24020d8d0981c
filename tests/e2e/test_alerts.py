"""Alerts from a planted failure to the chat: Prometheus, blackbox exporter and Alertmanager with the shipped files.

Only ports and times are changed: what waits for minutes or hours fires at once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.places import ROOT
from tests.ports import own_port
from tests.waiting import until

PROGRAMS = {
    "prometheus": "prometheus",
    "alertmanager": "prometheus-alertmanager",
    "blackbox": "prometheus-blackbox-exporter",
}
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS.values())), reason="Prometheus, Alertmanager or blackbox exporter is missing"
    ),
]
DAY = 86_400
PLANTED = f"""
grpo_ready 0
grpo_log_records_waiting 101
grpo_log_compaction_failed 1
grpo_log_disk_free_bytes 9
grpo_log_disk_size_bytes 100
grpo_champion_registered_timestamp_seconds{{model_name="desk/3"}} {time.time() - 31 * DAY:.0f}
grpo_retraining_timestamp_seconds{{name="weekly",verdict="failed"}} {time.time() - 15 * DAY:.0f}
grpo_retraining_timestamp_seconds{{name="nightly",verdict="running"}} {time.time() - DAY:.0f}
grpo_retraining_records{{name="weekly",result="read"}} 10
grpo_retraining_records{{name="weekly",result="accepted"}} 4
"""
"""Metrics of a server in trouble."""
EXPECTED = {
    *("GrpoServerDown", "GrpoServiceDown", "GrpoServerNotReady", "GrpoLogSlow", "GrpoCompactionFails"),
    *("GrpoDiskNearlyFull", "GrpoChampionOld", "GrpoRetrainingFailed", "GrpoRetrainingStands"),
    *("GrpoRetrainingOverdue", "GrpoConversationsRefused"),
}


@contextmanager
def listening(get: str, received: list[str]) -> Iterator[int]:
    """A server that answers GET with a text and keeps what is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(get.encode())

        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self._answer(b"ok")

        def _answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def test_planted_failures_reach_the_chat(tmp_path: Path):
    """A server that is down, Prefect and MLflow away, and a server whose metrics say what is wrong."""
    chat: list[str] = []
    folder = tmp_path / "prometheus"
    shutil.copytree(ROOT / "deployments" / "prometheus", folder)
    with ExitStack() as stack:
        planted = stack.enter_context(listening(PLANTED, []))
        chatting = stack.enter_context(listening("", chat))
        _change(folder, planted, chatting)
        _start(stack, folder, tmp_path)
        until("every alert is told", lambda: _told(chat) >= EXPECTED, patience_s=300)
        texts = [json.loads(message)["attachments"][0] for message in chat]
        assert all(text["title"].startswith("firing: Grpo") for text in texts)
        assert any("docs/operations.md#grposervicedown" in text["text"] for text in texts)


def _told(chat: list[str]) -> set[str]:
    """Names of the alerts that the chat has."""
    return {json.loads(message)["attachments"][0]["title"].partition(": ")[2] for message in chat}


def _change(folder: Path, planted: int, chatting: int) -> None:
    """Let the shipped files wait for nothing, and lead to this test."""
    alerts = yaml.safe_load((folder / "alerts.yaml").read_text())
    for group in alerts["groups"]:
        for rule in group["rules"]:
            rule["for"] = "0s"
    (folder / "alerts.yaml").write_text(yaml.safe_dump(alerts))
    manager = yaml.safe_load((folder / "alertmanager.yaml").read_text())
    del manager["receivers"][1]["email_configs"]  # there is no mail server
    manager["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(manager))
    (folder / "slack-url").write_text(f"http://127.0.0.1:{chatting}/hook")
    (folder / "smtp-password").write_text("x")
    (folder / "key").write_text("sk-grpo-x")
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    serving = next(job for job in config["scrape_configs"] if job["job_name"] == "grpo-serve")
    serving["static_configs"][0]["targets"] = [f"127.0.0.1:{planted}", f"127.0.0.1:{own_port()}"]
    services = next(job for job in config["scrape_configs"] if job["job_name"] == "grpo-services")
    services["static_configs"][0]["targets"] = [f"http://127.0.0.1:{own_port()}/api/health"]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))


def _start(stack: ExitStack, folder: Path, data: Path) -> None:
    """Start the three programs; they end with the stack."""
    ports = {name: own_port() for name in PROGRAMS}
    text = (folder / "prometheus.yaml").read_text()
    text = text.replace("127.0.0.1:9093", f"127.0.0.1:{ports['alertmanager']}")
    (folder / "prometheus.yaml").write_text(text.replace("127.0.0.1:9115", f"127.0.0.1:{ports['blackbox']}"))
    options = {
        "blackbox": [f"--config.file={folder}/blackbox.yaml"],
        "alertmanager": [
            f"--config.file={folder}/alertmanager.yaml",
            f"--storage.path={data}/alertmanager",
            "--cluster.listen-address=",
        ],
        "prometheus": [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={data}/tsdb"],
    }  # fmt: skip
    for name, program in PROGRAMS.items():
        log = stack.enter_context((data / f"{name}.log").open("w"))
        command = [program, f"--web.listen-address=127.0.0.1:{ports[name]}", *options[name]]
        process = stack.enter_context(subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
        stack.callback(process.kill)
