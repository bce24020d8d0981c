"""Each alert from a planted fault to the chat: Prometheus, blackbox exporter and Alertmanager with the shipped files.

Only ports and times are changed: what waits for minutes or hours fires at once. All faults are real ones of servers
(`tests.e2e.troubled_servers`), of files that they read, and of addresses, except for a full volume. The node exporter
measures volumes, and a test cannot fill one of a machine, so its metrics are planted
(`tests/deployments/test_monitoring.py` compares their names with those of the real exporter).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.troubled_servers import stalled_metrics, troubled_server
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
UNKNOWN = {
    "GrpoNoServer": "no server is in the configuration",
    "GrpoServiceUnknown": "neither Prefect nor MLflow is",
    "GrpoRetrainingUnknown": "no server has a report",
}
"""Alerts of a Prometheus that knows nothing, and their faults."""
TROUBLE = {
    "GrpoServerDown": "nothing listens at the address of a server",
    "GrpoServiceDown": "nothing listens at Prefect's address",
    "GrpoServerNotReady": "a server has no version",
    "GrpoLogSlow": "101 records wait for a disk that does not return from a sync",
    "GrpoErrors": "5 of 129 turns end by an error in the agent's code",
    "GrpoFirstTokenSlow": "the process that samples is stopped for 3 s while turns wait",
    "GrpoServerFull": "16 clients talk to a server that admits 4",
    "GrpoNoFeedback": "120 turns, and no feedback",
    "GrpoSwapFails": "the look for a new version raises",
    "GrpoMirrorFails": "MLflow is away",
    "GrpoCompactionFails": "a file stands where the folder of the tables should be",
    "GrpoDiskNearlyFull": "the disk of the log is full",
    "GrpoTurnsNotLogged": "the same, while a client talks",
    "GrpoChampionOld": "the version was registered 31 days ago",
    "GrpoRetrainingFailed": "a report with this verdict",
    "GrpoRetrainingOverdue": "which is 15 days old",
    "GrpoConversationsRefused": "and counts 4 of 10 conversations that were accepted",
    "GrpoRetrainingStuck": "a report of yesterday that says `running`",
    "GrpoVolumeNearlyFull": "planted metrics of the node exporter",
}
"""Alerts of servers in trouble, and their faults."""
VOLUME = """
node_filesystem_avail_bytes{fstype="ext4",mountpoint="/data"} 9
node_filesystem_size_bytes{fstype="ext4",mountpoint="/data"} 100
"""


@contextmanager
def listening(get: Callable[[], str], received: list[str]) -> Iterator[int]:
    """A server that answers GET with a text and keeps what is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(get().encode())

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


def test_a_fault_of_each_alert_reaches_the_chat(tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    """First Prometheus knows nothing, then it scrapes two servers in trouble, one that is down, and a full volume."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    chat: list[str] = []
    folder = tmp_path / "prometheus"
    shutil.copytree(ROOT / "deployments" / "prometheus", folder)
    with ExitStack() as stack:
        _shorten(folder, stack.enter_context(listening(str, chat)))
        prometheus, url = _start(stack, folder, tmp_path)
        until("the alerts of what is unknown", lambda: _told(chat) >= set(UNKNOWN), patience_s=240)

        trouble = stack.enter_context(troubled_server(small_disk))
        stalled = stack.enter_context(stalled_metrics(tmp_path / "stalled", 101))
        targets = {
            "grpo-serve": [
                f"127.0.0.1:{trouble.server.port}",
                f"127.0.0.1:{stack.enter_context(listening(stalled, []))}",
                f"127.0.0.1:{own_port()}",
            ],
            "grpo-services": [f"http://127.0.0.1:{own_port()}/api/health"],
            "grpo-machines": [f"127.0.0.1:{stack.enter_context(listening(lambda: VOLUME, []))}"],
        }
        (folder / "key").write_text(trouble.server.keys.create("prometheus", ("metrics",)))
        _scrape(folder, targets)
        prometheus.send_signal(signal.SIGHUP)
        until("the first scrape", lambda: _scraped(url, targets["grpo-serve"][0]), patience_s=240)
        trouble.fail()
        expected = {*UNKNOWN, *TROUBLE}

        def all_are_told() -> bool:
            trouble.talk(1)
            return _told(chat) >= expected

        until("every alert is told", all_are_told, patience_s=240)
        assert _told(chat) == expected == set(_rules(folder))
        texts = [json.loads(message)["attachments"][0]["text"] for message in chat]
        assert any("docs/operations.md#grposervicedown" in text for text in texts)


def _told(chat: list[str]) -> set[str]:
    """Names of the alerts of which the chat has a text that says that they fire."""
    titles = [json.loads(message)["attachments"][0]["title"] for message in chat]
    return {title.removeprefix("firing: ") for title in titles if title.startswith("firing: ")}


def _rules(folder: Path) -> list[str]:
    alerts = yaml.safe_load((folder / "alerts.yaml").read_text())
    return [rule["alert"] for group in alerts["groups"] for rule in group["rules"]]


def _scraped(url: str, instance: str) -> bool:
    """True if Prometheus has the metrics of a server."""
    query = {"query": f'grpo_ready{{instance="{instance}"}} == 1'}
    return bool(httpx.get(f"{url}/api/v1/query", params=query, timeout=60).json()["data"]["result"])


def _shorten(folder: Path, chatting: int) -> None:
    """Let the shipped files wait for nothing, know no server yet, and lead to this test."""
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
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    _scrape(folder, {job["job_name"]: [] for job in config["scrape_configs"]})


def _scrape(folder: Path, targets: dict[str, list[str]]) -> None:
    """Change the targets of each job."""
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets[job["job_name"]]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))


def _start(stack: ExitStack, folder: Path, data: Path) -> tuple[subprocess.Popen[Any], str]:
    """Start the three programs, which end with the stack: the process and the address of Prometheus."""
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
        "prometheus": [
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={data}/tsdb",
            "--rules.alert.resend-delay=1s",  # the first alerts fire before Prometheus knows its Alertmanager
        ],
    }  # fmt: skip
    processes = {}
    for name, program in PROGRAMS.items():
        log = stack.enter_context((data / f"{name}.log").open("w"))
        command = [program, f"--web.listen-address=127.0.0.1:{ports[name]}", *options[name]]
        process = stack.enter_context(subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
        stack.callback(process.kill)
        processes[name] = process
    return processes["prometheus"], f"http://127.0.0.1:{ports['prometheus']}"
