"""Grafana's dashboards: `python deployments/grafana/dashboards.py` writes serving.json and nights.json.

The first is of a server and its loop in the last hours, the second of the retrainings of the last 30 nights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Rate per second, summed over servers and over all labels but `by`."""
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def quantile(share: float, metric: str) -> str:
    """Quantile of a histogram by version."""
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'le, model_name')})"


def quantiles(metric: str) -> dict[str, str]:
    """Median and 99th percentile of a histogram by version."""
    return {f"p{share * 100:.0f} {{{{model_name}}}}": quantile(share, metric) for share in (0.5, 0.99)}


Panels = list[tuple[str, str, dict[str, str]]]
"""Title, unit, and expressions by their legends."""
SERVING: Panels = [
    ("Ready servers", "none", {"ready": "sum(grpo_ready)", "up": "count(grpo_ready)"}),
    ("Requests by status", "reqps", {"{{code}}": rate("http_requests_total", "code")}),
    ("Requests by route", "reqps", {"{{route}}": rate("http_requests_total", "route")}),
    ("Turns", "ops", {"{{status}}": rate("grpo_turns_total", "status")}),
    ("Finish reasons", "ops", {"{{finished_reason}}": rate("vllm:request_success_total", "finished_reason")}),
    ("Errors of the server", "ops", {"errors": rate("grpo_turn_errors_total")}),
    ("Time to first token", "s", quantiles("gen_ai_server_time_to_first_token_seconds")),
    ("Inter-token latency", "s", quantiles("vllm:inter_token_latency_seconds")),
    ("Duration of a turn", "s", quantiles("gen_ai_server_request_duration_seconds")),
    (
        "Running and waiting turns",
        "none",
        {
            "running {{model_name}}": "sum by (model_name) (vllm:num_requests_running)",
            "waiting {{model_name}}": "sum by (model_name) (vllm:num_requests_waiting)",
            "in progress": "sum(grpo_requests_in_progress)",
        },
    ),
    (
        "Mean wait for a slot",
        "s",
        {
            "{{model_name}}": f"{rate('vllm:request_queue_time_seconds_sum', 'model_name')}"
            f" / {rate('vllm:request_queue_time_seconds_count', 'model_name')}"
        },
    ),
    ("Requests that were not admitted", "reqps", {"{{reason}}": rate("vllm:admission_rejections_total", "reason")}),
    (
        "Tokens",
        "ops",
        {
            "prompt {{model_name}}": rate("vllm:prompt_tokens_total", "model_name"),
            "generated {{model_name}}": rate("vllm:generation_tokens_total", "model_name"),
        },
    ),
    ("KV cache in use", "percentunit", {"{{model_name}}": "max by (model_name) (vllm:kv_cache_usage_perc)"}),
    (
        "Prompt tokens from the prefix cache",
        "percentunit",
        {
            "{{model_name}}": f"{rate('vllm:prefix_cache_hits_total', 'model_name')}"
            f" / {rate('vllm:prefix_cache_queries_total', 'model_name')}"
        },
    ),
    ("Records that wait for the log", "none", {"{{instance}}": "grpo_log_records_waiting"}),
    ("Records of the log", "ops", {"{{result}}": rate("grpo_log_records_total", "result")}),
    (
        "Free room on the log's disk",
        "percentunit",
        {"{{instance}}": "grpo_log_disk_free_bytes / grpo_log_disk_size_bytes"},
    ),
    ("Feedback", "ops", {"{{kind}}": rate("grpo_feedback_total", "kind")}),
    (
        "Verified success",
        "percentunit",
        {
            "success": rate("grpo_feedback_outcomes_total", where='{success="true"}')
            + f" / {rate('grpo_feedback_outcomes_total')}"
        },
    ),
    ("Requests by how they were joined", "reqps", {"{{by}}": rate("grpo_requests_joined_total", "by")}),
    (
        "Age of the champion",
        "s",
        {"{{model_name}}": "time() - max by (model_name) (grpo_champion_registered_timestamp_seconds)"},
    ),
    (
        "Swaps",
        "none",
        {
            "swaps": "sum(increase(grpo_swaps_total[$__rate_interval]))",
            "failed loads": "sum(increase(grpo_swap_failures_total[$__rate_interval]))",
        },
    ),
    (
        "Last retraining",
        "s",
        {"{{name}}: {{verdict}}": "time() - max by (name, verdict) (grpo_retraining_timestamp_seconds)"},
    ),
    (
        "Conversations of the last retraining",
        "none",
        {"{{name}} {{result}}": "max by (name, result) (grpo_retraining_records)"},
    ),
]
_REPORT = "max by (name, verdict) (grpo_retraining_timestamp_seconds)"
_RUNNING = 'max by (name) (grpo_retraining_timestamp_seconds{verdict="running"})'
_LAST = "max by (name) (grpo_retraining_timestamp_seconds)"
NIGHTS: Panels = [
    ("Verdict of the last day", "bool", {"{{name}}: {{verdict}}": f"time() - {_REPORT} < bool 86400"}),
    ("Time since the last report", "s", {"{{name}}": f"time() - {_LAST}"}),
    ("Retrainings in progress", "s", {"{{name}}": f"time() - {_RUNNING}"}),
    ("Conversations", "none", {"{{name}} {{result}}": "max by (name, result) (grpo_retraining_records)"}),
    ("Turns of the log", "none", {"{{name}} {{result}}": "max by (name, result) (grpo_retraining_turns)"}),
    ("Feedback on them", "none", {"{{name}} {{result}}": "max by (name, result) (grpo_retraining_feedback)"}),
    (
        "Age of the champion",
        "s",
        {"{{model_name}}": "time() - max by (model_name) (grpo_champion_registered_timestamp_seconds)"},
    ),
    ("Swaps a day", "none", {"swaps": "sum(increase(grpo_swaps_total[1d]))"}),
    (
        "Verified success of a day",
        "percentunit",
        {
            "success": 'sum(increase(grpo_feedback_outcomes_total{success="true"}[1d]))'
            " / sum(increase(grpo_feedback_outcomes_total[1d]))"
        },
    ),
    ("Prefect and MLflow answer", "bool", {"{{instance}}": "min by (instance) (probe_success)"}),
    (
        "Free room of the volumes",
        "percentunit",
        {"{{mountpoint}}": "min by (mountpoint) (node_filesystem_avail_bytes / node_filesystem_size_bytes)"},
    ),
    (
        "Free room on the log's disk",
        "percentunit",
        {"{{instance}}": "grpo_log_disk_free_bytes / grpo_log_disk_size_bytes"},
    ),
]


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards as Grafana imports them, by the names of their files."""
    return {
        "serving.json": dashboard("grpo-serving", "grpo serve", SERVING, since="now-6h", refresh="30s"),
        "nights.json": dashboard("grpo-nights", "grpo nights", NIGHTS, since="now-30d", refresh="15m"),
    }


def dashboard(uid: str, title: str, contents: Panels, *, since: str, refresh: str) -> dict[str, Any]:
    """A dashboard as Grafana imports it, of the time since `since`, in rows of three panels."""
    panels = [
        {
            "id": index + 1,
            "type": "timeseries",
            "title": heading,
            "datasource": _SOURCE,
            "gridPos": {
                "x": index % _COLUMNS * _WIDTH,
                "y": index // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
                for number, (legend, expr) in enumerate(expressions.items())
            ],
        }
        for index, (heading, unit, expressions) in enumerate(contents)
    ]
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["grpo"],
        "schemaVersion": 39,
        "refresh": refresh,
        "time": {"from": since, "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


if __name__ == "__main__":
    for name, content in dashboards().items():
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
