"""Dashboard and alerts: they name metrics of the server, and each alert fires in a planted fault and not without."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.grpo.serving.metric_families import families
from tests.places import ROOT
from tests.ports import own_port

GRAFANA, PROMETHEUS = ROOT / "deployments" / "grafana", ROOT / "deployments" / "prometheus"
PROMTOOL, NODE_EXPORTER = shutil.which("promtool"), shutil.which("prometheus-node-exporter")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed; it comes with Prometheus")
DASHBOARDS = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GRAFANA.glob("*.json"))}
EXPORTERS = {
    "probe_success",  # blackbox exporter
    *("node_filesystem_avail_bytes", "node_filesystem_size_bytes"),  # node exporter
    *("kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"),  # a kubelet
}
SERVER = {"job": "grpo-serve", "instance": "a"}
MINUTES = 90
Series = dict[str, str]


@cache
def rules() -> dict[str, dict[str, Any]]:
    loaded = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in loaded["groups"] for rule in group["rules"]}


def expressions() -> Iterator[str]:
    for dashboard in DASHBOARDS.values():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield target["expr"].replace("$__rate_interval", "5m")
    for rule in rules().values():
        yield rule["expr"]


def metric_names(expression: str) -> set[str]:
    """Names of all selectors; raises for an expression that does not parse."""
    names, pending = set(), [promql_parser.parse(expression)]
    while pending:
        node = pending.pop()
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)
        elif isinstance(node, promql_parser.MatrixSelector):
            names.add(node.vector_selector.name)
        elif isinstance(node, promql_parser.Call):
            pending += node.args
        elif isinstance(node, promql_parser.BinaryExpr):
            pending += [node.lhs, node.rhs]
        elif isinstance(node, promql_parser.AggregateExpr | promql_parser.ParenExpr):
            pending.append(node.expr)
        else:
            assert isinstance(node, promql_parser.NumberLiteral), node
    return names


def test_the_dashboards_are_what_their_generator_writes():
    """Those of a server and of the last nights; panels have different places and names."""
    assert runpy.run_path(str(GRAFANA / "dashboards.py"))["dashboards"]() == DASHBOARDS
    assert {name: (board["uid"], board["time"]["from"]) for name, board in DASHBOARDS.items()} == {
        "serving.json": ("grpo-serving", "now-6h"),
        "nights.json": ("grpo-nights", "now-30d"),
    }
    for board in DASHBOARDS.values():
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
        assert len(places) == len({panel["title"] for panel in board["panels"]}) == len(board["panels"])


def test_every_expression_names_metrics_of_the_server(tmp_path: Path):
    """And parses. `up` is Prometheus' own, others are of its exporters."""
    exported = {"up", *EXPORTERS, *(series for family in families(tmp_path) for series in family.series)}
    names = [metric_names(expression) for expression in expressions()]
    assert all(names)
    assert set().union(*names) <= exported


def test_every_alert_has_a_paragraph_of_the_runbook():
    """Its address leads to a heading of docs/operations.md, and no heading is left over."""
    section = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").split("\n## Alerts\n")[1].split("\n## ")[0]
    assert re.findall(r"^### (\w+)$", section, flags=re.MULTILINE) == list(rules())
    for name, rule in rules().items():
        assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


def labelled(metric: str, **labels: str) -> str:
    pairs = ", ".join(f'{name}="{value}"' for name, value in {**SERVER, **labels}.items())
    return f"{metric}{{{pairs}}}"


def per_minute(count: float) -> str:
    """A counter that grows so much every minute."""
    return f"0+{count}x{MINUTES}"


def constant(value: float) -> str:
    return f"{value}+0x{MINUTES}"


def first_tokens(late: float) -> Series:
    """100 turns a minute, of which so many had to wait for more than 2.5 s."""
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    bounds = (("1", 100 - late), ("2.5", 100 - late), ("5", 100), ("+Inf", 100))
    return {labelled(name, le=bound): per_minute(count) for bound, count in bounds}


def errors(share: float, *, http: float = 0) -> Series:
    return {
        labelled("grpo_turn_errors_total"): per_minute(1000 * share),
        labelled("grpo_turns_total", status="failed"): per_minute(1000 * share),
        labelled("grpo_turns_total", status="answered"): per_minute(1000 * (1 - share)),
        labelled("http_requests_total", code="200"): per_minute(1000 * (1 - http) - 100),
        labelled("http_requests_total", code="500"): per_minute(1000 * http),
        labelled("http_requests_total", code="503"): per_minute(100),
    }


def feedback(count: float, turns: float) -> Series:
    return {
        labelled("grpo_feedback_total", kind="rating"): per_minute(count),
        labelled("grpo_turns_total", status="answered"): per_minute(turns),
    }


def disk(free: float) -> Series:
    return {labelled("grpo_log_disk_free_bytes"): constant(free), labelled("grpo_log_disk_size_bytes"): constant(100)}


def volume(free: float, fstype: str = "ext4") -> Series:
    """A disk of a machine."""
    labels = {"job": "grpo-machines", "fstype": fstype, "mountpoint": "/data"}
    return {
        labelled("node_filesystem_avail_bytes", **labels): constant(free),
        labelled("node_filesystem_size_bytes", **labels): constant(100),
    }


def claim(free: float) -> Series:
    """A volume of a pod."""
    labels = {"job": "kubelet", "namespace": "grpo", "persistentvolumeclaim": "serving"}
    return {
        labelled("kubelet_volume_stats_available_bytes", **labels): constant(free),
        labelled("kubelet_volume_stats_capacity_bytes", **labels): constant(100),
    }


def records(read: float, accepted: float) -> Series:
    name = "grpo_retraining_records"
    counts = (("read", read), ("accepted", accepted))
    return {labelled(name, name="weekly", result=result): constant(count) for result, count in counts}


def retraining(time: float, verdict: str = "promote") -> Series:
    return {labelled("grpo_retraining_timestamp_seconds", name="weekly", verdict=verdict): constant(time)}


@pytest.mark.skipif(NODE_EXPORTER is None, reason="the node exporter is not installed: prometheus-node-exporter")
def test_the_node_exporter_has_the_metrics_of_volumes_that_the_rule_reads():
    """With the label by which the rule leaves memory and layers of images out."""
    port = own_port()
    options = [f"--web.listen-address=127.0.0.1:{port}", "--collector.disable-defaults", "--collector.filesystem"]
    with subprocess.Popen([str(NODE_EXPORTER), *options], stderr=subprocess.DEVNULL) as exporter:
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=60) as client:
                text = client.get(f"http://127.0.0.1:{port}/metrics").text
        finally:
            exporter.kill()
    measured = {family.name: family.samples for family in text_string_to_metric_families(text)}
    names = {name for name in metric_names(rules()["GrpoVolumeNearlyFull"]["expr"]) if name.startswith("node_")}
    assert {name for name in names if measured.get(name)} == names
    assert all({"fstype", "mountpoint"} <= sample.labels.keys() for name in names for sample in measured[name])


DAYS, HOURS = 86_400, 3600
JOB = {"job": "grpo-serve"}
WEEKLY = {"name": "weekly"}
SERVICES = {"job": "grpo-services"}
CASES: list[tuple[str, Series, Series, dict[str, str]]] = [
    ("GrpoServerDown", {labelled("up"): constant(0)}, {labelled("up"): constant(1)}, SERVER),
    ("GrpoServerNotReady", {labelled("grpo_ready"): constant(0)}, {labelled("grpo_ready"): constant(1)}, SERVER),
    ("GrpoErrors", errors(0.011), errors(0.009), SERVER),
    ("GrpoErrors", errors(0, http=0.011), errors(0, http=0.009), SERVER),
    ("GrpoFirstTokenSlow", first_tokens(2), first_tokens(0), JOB),
    (
        "GrpoServerFull",
        {labelled("vllm:admission_rejections_total", reason="requests"): per_minute(7)},
        {
            labelled("vllm:admission_rejections_total", reason="requests"): per_minute(5),
            labelled("vllm:admission_rejections_total", reason="not ready"): per_minute(100),
        },
        SERVER,
    ),
    (
        "GrpoTurnsNotLogged",
        {labelled("grpo_turns_unlogged_total"): f"0x{MINUTES - 3} 1x3"},
        {labelled("grpo_turns_unlogged_total"): f"0 1x{MINUTES}"},
        SERVER,
    ),
    (
        "GrpoTurnsNotLogged",
        {labelled("grpo_log_records_total", result="refused"): per_minute(1)},
        {labelled("grpo_log_records_total", result="durable"): per_minute(1)},
        SERVER,
    ),
    (
        "GrpoLogSlow",
        {labelled("grpo_log_records_waiting"): constant(101)},
        {labelled("grpo_log_records_waiting"): constant(100)},
        SERVER,
    ),
    (
        "GrpoCompactionFails",
        {labelled("grpo_log_compaction_failed"): constant(1)},
        {labelled("grpo_log_compaction_failed"): constant(0)},
        SERVER,
    ),
    (
        "GrpoMirrorFails",
        {labelled("grpo_mirror_failures_total"): per_minute(1)},
        {labelled("grpo_mirror_failures_total"): per_minute(0.2)},
        SERVER,
    ),
    ("GrpoDiskNearlyFull", disk(9), disk(11), SERVER),
    (
        "GrpoSwapFails",
        {labelled("grpo_swap_failures_total"): per_minute(1)},
        {labelled("grpo_swap_failures_total"): per_minute(0.5)},
        SERVER,
    ),
    (
        "GrpoChampionOld",
        {labelled("grpo_champion_registered_timestamp_seconds", model_name="desk/3"): constant(-31 * DAYS)},
        {labelled("grpo_champion_registered_timestamp_seconds", model_name="desk/3"): constant(-29 * DAYS)},
        {**SERVER, "model_name": "desk/3"},
    ),
    ("GrpoNoFeedback", feedback(0, 5), feedback(0.1, 5), JOB),
    ("GrpoNoFeedback", feedback(0, 5), feedback(0, 0.5), JOB),
    (
        "GrpoRetrainingFailed",
        retraining(1, "failed"),
        retraining(1, "refuse"),
        {**SERVER, **WEEKLY, "verdict": "failed"},
    ),
    ("GrpoRetrainingStuck", retraining(-13 * HOURS, "running"), retraining(-10 * HOURS, "running"), {**JOB, **WEEKLY}),
    ("GrpoRetrainingStuck", retraining(-13 * HOURS, "running"), retraining(-13 * HOURS), {**JOB, **WEEKLY}),
    ("GrpoRetrainingUnknown", {}, retraining(1), {}),
    ("GrpoNoServer", {}, {labelled("up"): constant(0)}, {"job": "grpo-serve"}),
    ("GrpoRetrainingOverdue", retraining(-15 * DAYS), retraining(-13 * DAYS), {**JOB, **WEEKLY}),
    ("GrpoConversationsRefused", records(10, 4), records(10, 5), {**SERVER, **WEEKLY}),
    ("GrpoConversationsRefused", records(10, 4), records(0, 0), {**SERVER, **WEEKLY}),
    (
        "GrpoServiceDown",
        {labelled("probe_success", **SERVICES): constant(0)},
        {labelled("probe_success", **SERVICES): constant(1)},
        {**SERVER, **SERVICES},
    ),
    ("GrpoServiceUnknown", {}, {labelled("probe_success", **SERVICES): constant(0)}, SERVICES),
    (
        "GrpoVolumeNearlyFull",
        volume(9),
        {**volume(11), **volume(1, fstype="tmpfs")},
        {**SERVER, "job": "grpo-machines", "fstype": "ext4", "mountpoint": "/data"},
    ),
    (
        "GrpoVolumeNearlyFull",
        claim(9),
        claim(11),
        {**SERVER, "job": "kubelet", "namespace": "grpo", "persistentvolumeclaim": "serving"},
    ),
]
"""An alert, series in which it fires, series in which it does not, and the labels with which it fires."""


def test_every_alert_is_tried():
    assert {name for name, *_ in CASES} == set(rules())


def _unit_test(name: str, series: Series, labels: dict[str, str] | None) -> dict[str, Any]:
    rule = rules()[name]
    alert = {"exp_labels": {**(labels or {}), **rule["labels"]}, "exp_annotations": rule["annotations"]}
    expected = [] if labels is None else [alert]
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{MINUTES}m", "alertname": name, "exp_alerts": expected}],
    }


@needs_promtool
def test_each_alert_fires_in_its_fault_and_not_without(tmp_path: Path):
    """promtool's own unit tests, over an hour and a half."""
    tests = [
        _unit_test(name, series, expected)
        for name, fault, healthy, labels in CASES
        for series, expected in ((fault, labels), (healthy, None))
    ]
    file = tmp_path / "tests.yaml"
    document = {"rule_files": [str(PROMETHEUS / "alerts.yaml")], "evaluation_interval": "1m", "tests": tests}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    tried = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stdout + tried.stderr


@needs_promtool
def test_promtool_takes_configuration_and_rules(tmp_path: Path):
    """With the key that the operator creates."""
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    (tmp_path / "prometheus" / "key").write_text("sk-grpo-x")
    checked = subprocess.run(
        [str(PROMTOOL), "check", "config", str(tmp_path / "prometheus" / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is not installed; it comes with Alertmanager")
def test_amtool_takes_the_configuration_and_sends_critical_alerts_by_mail(tmp_path: Path):
    """Every alert has a severity that a route knows."""
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    file = tmp_path / "prometheus" / "alertmanager.yaml"

    def amtool(*arguments: str) -> str:
        done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "SUCCESS" in amtool("check-config", str(file))
    for rule in rules().values():
        severity = rule["labels"]["severity"]
        receiver = amtool("config", "routes", "test", f"--config.file={file}", f"severity={severity}").strip()
        assert receiver == ("chat and e-mail" if severity == "critical" else "chat")
