"""Families of all metrics of a server, of which one turn, one request and one piece of feedback were counted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette

from grpo.config.serving import EngineSettings, MirrorSettings
from grpo.log.records import Feedback, ServedTurn
from grpo.log.writer import ServingLog
from grpo.messages import Message
from grpo.serving.access.callers import Caller
from grpo.serving.access.connections import Connections
from grpo.serving.access.guard import Guard
from grpo.serving.access.limits import Limiter
from grpo.serving.access.refused_work import RefusedWork
from grpo.serving.engine.versions import Versions
from grpo.serving.metrics import Metrics
from grpo.serving.mirror.mirror import Mirror
from grpo.serving.protocol.chat_response import Usage
from grpo.serving.requests.service import Service
from grpo.trajectories import Turn

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


def served_turn(**changes: Any) -> ServedTurn:
    """An answered turn of two tokens, the first of which came after 0.5 s."""
    values: dict[str, Any] = {
        "id": "turn",
        "request_id": "turn",
        "conversation_id": "conversation",
        "parent": None,
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "status": "answered",
        "reason": "stop",
        "model": "clerk/1",
        "policy_hash": "policy",
        "renderer_hash": "renderer",
        "turns": (
            Turn(message=Message(role="user", content="Hi"), start=0, stop=1),
            Turn(message=Message(role="assistant", content="Yes"), start=1, stop=3),
        ),
        "token_ids": np.array([1, 2, 3], np.int32),
        "loss_mask": np.array([False, True, True]),
        "sampler_logprobs": np.array([np.nan, -1.0, -1.0], np.float32),
        "tools": (),
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 1,
        "first_token_s": 0.5,
        "latency_s": 0.75,
        "key": "key",
        "user": "",
    }
    return ServedTurn(**{**values, **changes})


def feedback(**changes: Any) -> Feedback:
    """A rating of the turn's conversation."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, Any] = {"id": "f", "time": time, "conversation_id": "conversation", "key": "key", "rating": 1.0}
    return Feedback(**{**values, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric as Prometheus has it."""

    name: str
    """Name of its series without `_bucket`, `_sum` and `_count`."""
    labels: tuple[str, ...]
    text: str
    series: tuple[str, ...]


def metrics_of(folder: Path, reports: Path | None = None) -> Metrics:
    """Metrics of a server that does not run."""
    metrics, log = Metrics(), ServingLog(folder)
    mirror = Mirror(log, MirrorSettings(experiment="served"), tracking_uri="http://127.0.0.1:5000")
    metrics.watch(Service(Versions(EngineSettings()), log), log, reports, mirror)
    work = RefusedWork(Limiter())
    metrics.watch_edge(work, Connections(most=8, per_address=4), Guard(Starlette(), _nobody, refused_work=work))
    return metrics


def _nobody(credential: str) -> Caller:
    raise AssertionError("no request is made")


def families(folder: Path) -> list[MetricFamily]:
    """All families, in the order of the text that Prometheus reads."""
    metrics = metrics_of(folder)
    metrics.observe(served_turn(), Usage(prompt=1, completion=2), [1.0, 1.25])
    metrics.observe_feedback(feedback(success=True))
    metrics.observe_request("/ready", "GET", "200")
    result = []
    for family in metrics.registry.collect():
        suffixes = _SUFFIXES.get(family.type, ("",))
        labels = getattr(family, "_labelnames", ()) or next((tuple(sample.labels) for sample in family.samples), ())
        shown = f"{family.name}_total" if family.type == "counter" else family.name
        series = tuple(f"{family.name}{suffix}" for suffix in suffixes)
        kept = tuple(label for label in labels if label != "le")
        result.append(MetricFamily(name=shown, labels=kept, text=family.documentation, series=series))
    return result
