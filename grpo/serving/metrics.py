"""Metrics of a server in Prometheus' format, with the names of vLLM and OpenTelemetry's conventions for generative AI.

The GenAI conventions are from opentelemetry-semantic-conventions 0.66b2. Labels are versions, routes and closed sets of
words, but never users, keys or conversations, so that the number of series is bounded. docs/serving.md lists them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from grpo.log.records import Feedback, ServedTurn
from grpo.log.writer import LogStats, ServingLog
from grpo.serving.access.connections import Connections
from grpo.serving.access.guard import Guard
from grpo.serving.access.refused_work import RefusedWork
from grpo.serving.mirror.mirror import Mirror
from grpo.serving.protocol.chat_response import Usage
from grpo.serving.requests.service import Service

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOKENS = tuple(2.0**power for power in range(1, 16))
_LABELS = ["model_name", "arm"]
_ENDS = {"aborted": "abort", "failed": "error", "erased": "abort"}
"""vLLM's finish reasons for turns without an answer."""
_FINISHED = ("stop", "length", "tool_calls", "abort", "error")
_FEEDBACK = ("rating", "comment", "correction", "success", "expected", "world")
_REPORTS = "*/retraining.json"
Family = CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily


class Metrics:
    """Metrics of one server: histograms and counters of its turns, and its counts at the time of a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, buckets=buckets, registry=self.registry)

        def counter(name: str, text: str, labels: Sequence[str]) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self._first = histogram("gen_ai_server_time_to_first_token_seconds", "Time to first token.", _SECONDS)
        self._each = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Mean time per token after the first.", _TOKEN_SECONDS
        )
        self._gap = histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a turn.", _TOKEN_SECONDS)
        self._whole = histogram("gen_ai_server_request_duration_seconds", "Duration of an answered turn.", _SECONDS)
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of an answered turn.", _TOKENS)
        self._generated = histogram("vllm:request_generation_tokens", "Generated tokens of an answered turn.", _TOKENS)
        self._prompts = counter("vllm:prompt_tokens", "Prompt tokens of answered turns, cached ones included.", _LABELS)
        self._tokens = counter("vllm:generation_tokens", "Tokens that were generated, also without an answer.", _LABELS)
        self._ends = counter("vllm:request_success", "Ended turns by finish reason.", [*_LABELS, "finished_reason"])
        self._feedback = counter("grpo_feedback", "Feedback records by what they hold.", ["kind"])
        self._outcomes = counter("grpo_feedback_outcomes", "Feedback with a verified outcome.", ["success"])
        self._http = counter("http_requests", "HTTP requests by route and status.", ["route", "method", "code"])
        for kind in _FEEDBACK:
            self._feedback.labels(kind)
        for success in ("true", "false"):
            self._outcomes.labels(success)

    def observe(self, turn: ServedTurn, usage: Usage, times: Sequence[float]) -> None:
        """Count a logged turn. Its tokens were sampled at `times`."""
        labels = (turn.model, turn.arm)
        for reason in _FINISHED:  # create all series with the first turn, because a rate needs an earlier value
            self._ends.labels(*labels, reason)
        self._ends.labels(*labels, _ENDS.get(turn.status, turn.reason)).inc()
        self._tokens.labels(*labels).inc(usage.completion)
        if turn.first_token_s is not None:
            self._first.labels(*labels).observe(turn.first_token_s)
        gaps = self._gap.labels(*labels)
        for earlier, later in pairwise(times):
            gaps.observe(later - earlier)
        if len(times) > 1:
            self._each.labels(*labels).observe((times[-1] - times[0]) / (len(times) - 1))
        if turn.status == "answered":
            self._whole.labels(*labels).observe(turn.latency_s)
            self._prompt.labels(*labels).observe(usage.prompt)
            self._prompts.labels(*labels).inc(usage.prompt)
            self._generated.labels(*labels).observe(usage.completion)

    def observe_feedback(self, feedback: Feedback) -> None:
        """Count feedback that is in the log."""
        for kind in _FEEDBACK:
            if getattr(feedback, kind) is not None:
                self._feedback.labels(kind).inc()
        if feedback.success is not None:
            self._outcomes.labels(str(feedback.success).lower()).inc()

    def observe_request(self, route: str, method: str, code: str) -> None:
        """Count an HTTP request. `route` is the path of the route, with the names of its parameters."""
        self._http.labels(route, method, code).inc()

    def watch(self, service: Service, log: ServingLog, reports: Path | None, mirror: Mirror | None = None) -> None:
        """Collect a service, its log and mirror, and the retraining reports below a folder, at each scrape."""
        collectors = (_ServiceCounts(service), _EngineCounts(service), _LogCounts(log), _Retrainings(reports))
        for collector in (*collectors, *([] if mirror is None else [_MirrorCounts(mirror)])):
            self.registry.register(collector)

    def watch_edge(self, refused_work: RefusedWork, connections: Connections, guard: Guard) -> None:
        """Collect refused work and open connections at each scrape."""
        self.registry.register(_EdgeCounts(refused_work, connections, guard))

    def render(self) -> bytes:
        """Text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def values(self) -> dict[str, float]:
        """Value of each series by its name with labels."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return {f"{sample.name}{_labels(sample.labels)}": sample.value for sample in samples}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


class _ServiceCounts(Collector):
    """Counts of a service and its versions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        service, counts, versions = self._service, self._service.counts, self._service.versions
        turns = {"answered": 0, "aborted": 0, "failed": 0, "erased": 0} | counts.turns
        refused = {"not ready": 0, "requests": 0, "tokens": 0} | counts.refused
        refused["preparation"] = service.preparation.refused
        yield _counter("grpo_turns", "Turns in the log.", turns.items(), "status")
        yield _counter(
            "grpo_requests_joined", "Requests by how they were joined to a conversation.", counts.joined.items(), "by"
        )
        yield _counter("vllm:admission_rejections", "Requests that were not admitted.", refused.items(), "reason")
        calls = {"parsed": 0, "repaired": 0, "malformed": 0} | counts.calls
        yield _counter("grpo_tool_calls", "Tool calls of answered turns.", calls.items(), "form")
        yield _counter("grpo_turns_unlogged", "Turns that could not be written to the log.", [("", counts.unlogged)])
        yield _counter("grpo_turn_errors", "Turns that ended by an error of the server.", [("", counts.errors)])
        yield _counter("grpo_swaps", "Changes to another version.", [("", versions.swaps)])
        failures = [("", versions.failed_loads)]
        yield _counter("grpo_swap_failures", "Failed attempts to load a version, and engines that ended.", failures)
        yield _gauge("grpo_requests_in_progress", "Turns that are generated or wait.", [("", service.requests)])
        yield _gauge("grpo_tokens_in_progress", "Tokens that these turns may need.", [("", service.tokens)])
        waiting = [("", service.preparation.characters)]
        yield _gauge(
            "grpo_preparation_characters", "Characters of requests that wait to be parsed and tokenized.", waiting
        )
        yield _gauge(
            "grpo_conversation_turns_in_memory",
            "Turns that are in memory, so that a request can continue them.",
            [("", len(service.conversations))],
        )
        yield _counter(
            "grpo_turns_unshared", "Turns that could not be written to the shared database.", [("", counts.unshared)]
        )
        sharing = [("", 0 if service.turns.away else service.turns.servers)]
        yield _gauge("grpo_servers", "Servers that share conversations and limits, or 0 while they cannot.", sharing)
        yield _gauge("grpo_ready", "1 while requests are accepted.", [("", float(service.ready))])
        moved = [("", float(versions.moved is not None))]
        yield _gauge("grpo_champion_moved_by_hand", "1 if the alias champion is not at the promoted version.", moved)
        served = None if versions.current is None else versions.current.served
        known = served is not None and served.registered is not None
        yield _gauge(
            "grpo_champion_registered_timestamp_seconds",
            "Time at which the version that answers new conversations was registered.",
            [(served.version, served.registered)] if known else [],  # type: ignore[union-attr,list-item]
            "model_name",
        )


class _EdgeCounts(Collector):
    """Counts of refused work and of connections."""

    def __init__(self, refused_work: RefusedWork, connections: Connections, guard: Guard) -> None:
        self._refused_work, self._connections, self._guard = refused_work, connections, guard

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        work, connections = self._refused_work, self._connections
        yield _counter(
            "grpo_refused_requests", "Refused requests that count in the budgets of their keys.", [("", work.requests)]
        )
        yield _counter("grpo_refused_bytes", "Bytes of the bodies and frames of refused requests.", [("", work.bytes)])
        yield _counter(
            "grpo_refused_budget_exceeded",
            "Requests of keys that have used up their budget of refused requests.",
            [("", work.exceeded)],
        )
        yield _gauge("grpo_connections", "Open connections.", connections.states().items(), "state")
        yield _counter("grpo_connections_closed", "Connections that were closed.", connections.closed.items(), "reason")
        yield _gauge("grpo_websockets", "Open WebSockets.", [("", sum(self._guard.sockets.values()))])


class _EngineCounts(Collector):
    """Counts of the engines of all versions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        loaded = [(version.served.version, version.stats()) for version in self._service.versions.loaded]
        engines = [(version, stats) for version, stats in loaded if stats is not None]
        for make, name, text, field in (
            (_gauge, "vllm:num_requests_running", "Turns in the batch.", "running"),
            (_gauge, "vllm:num_requests_waiting", "Turns that wait for a slot.", "waiting"),
            (_gauge, "vllm:kv_cache_tokens", "Tokens in the KV cache of turns in the batch.", "kv_tokens"),
            (_gauge, "vllm:prefix_cache_bytes", "Keys and values of idle conversations.", "prefix_cache_bytes"),
            (
                _counter,
                "vllm:prefix_cache_queries",
                "Prompt tokens that were looked up in the prefix cache.",
                "prefix_queries",
            ),
            (_counter, "vllm:prefix_cache_hits", "Prompt tokens that the prefix cache had.", "prefix_hits"),
            (_counter, "grpo_forward_tokens", "Tokens of all forward passes.", "tokens_processed"),
        ):
            yield make(name, text, [(version, getattr(stats, field)) for version, stats in engines], "model_name")
        silences = [(item.served.version, item.silent_s) for item in self._service.versions.loaded]
        silent = [(version, silent_s) for version, silent_s in silences if silent_s is not None]
        text = "Seconds since the last heartbeat of the engine process, which sends one each second."
        yield _gauge("grpo_engine_silent_seconds", text, silent, "model_name")
        usage = [(version, stats.kv_tokens / max(1, stats.kv_capacity)) for version, stats in engines]
        yield _gauge("vllm:kv_cache_usage_perc", "Share of the slots' capacity in use.", usage, "model_name")
        waits = SummaryMetricFamily(
            "vllm:request_queue_time_seconds", "Time that turns have waited for a slot.", labels=["model_name"]
        )
        for version, stats in engines:
            waits.add_metric([version], stats.turns_admitted, stats.queue_s)
        yield waits


class _LogCounts(Collector):
    """Counts of the serving log, and the room on its disk."""

    def __init__(self, log: ServingLog) -> None:
        self._log = log

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        stats: LogStats = self._log.stats()
        records = [("durable", stats.records), ("refused", stats.refused)]
        yield _counter("grpo_log_records", "Records that were given to the log.", records, "result")
        yield _counter("grpo_log_bytes", "Bytes that were written.", [("", stats.bytes)])
        yield _counter(
            "grpo_log_syncs", "Syncs of the log to disk, each for one or several records.", [("", stats.syncs)]
        )
        yield _gauge("grpo_log_records_waiting", "Records that are not durable yet.", [("", stats.waiting)])
        failed = float(stats.compaction_error is not None)
        yield _gauge(
            "grpo_log_compaction_failed",
            "1 if the last conversion of log segments into Parquet failed.",
            [("", failed)],
        )
        disk = [("", shutil.disk_usage(self._log.folder))] if self._log.folder.is_dir() else []
        yield _gauge("grpo_log_disk_size_bytes", "Size of the log's disk.", [("", use.total) for _, use in disk])
        yield _gauge("grpo_log_disk_free_bytes", "Free space on the log's disk.", [("", use.free) for _, use in disk])


class _MirrorCounts(Collector):
    """Counts of the mirror in MLflow."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        counts = self._mirror.counts
        records = [("turn", counts.turns), ("feedback", counts.feedback), ("refused", counts.refused)]
        yield _gauge("grpo_mirror_records_waiting", "Records that MLflow does not have yet.", [("", counts.waiting)])
        yield _counter("grpo_mirror_records", "Records that were mirrored or refused.", records, "result")
        yield _counter(
            "grpo_mirror_failures",
            "Failed attempts to send records to MLflow. They are repeated.",
            [("", counts.failures)],
        )


class _Retrainings(Collector):
    """Last report of each retraining on this machine."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Family]:
        """See `Collector`. If a report cannot be read, its verdict is `unreadable`."""
        paths = [] if self._folder is None else sorted(self._folder.glob(_REPORTS))
        ended = GaugeMetricFamily(
            "grpo_retraining_timestamp_seconds", "Time of a retraining's last report.", labels=["name", "verdict"]
        )
        records, turns, feedback = (
            GaugeMetricFamily(f"grpo_retraining_{name}", text, labels=["name", "result"])
            for name, text in (
                ("records", "Conversations that the retraining has read, and accepted."),
                (
                    "turns",
                    "Answered turns of the serving log that the retraining has read: joined to a conversation, or "
                    "unjoined, e.g. because an earlier turn is missing.",
                ),
                (
                    "feedback",
                    "Feedback of the serving log that the retraining has read: joined to a logged conversation, "
                    "quarantined or duplicate.",
                ),
            )
        )
        for path in paths:
            try:
                written = path.stat().st_mtime
            except OSError:  # removed since it was listed
                continue
            try:
                report: dict[str, Any] = json.loads(path.read_bytes())
                verdict = str(report["verdict"])
                curation = (report["triggers"] or {}).get("curation", {})
                counts = [float(curation[name]) for name in ("records", "accepted") if curation]
                joins = _joins(curation.get("served", {}))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                verdict, counts, joins = "unreadable", [], ({}, {})
            ended.add_metric([path.parent.name, verdict], written)
            for result, count in zip(("read", "accepted"), counts, strict=False):
                records.add_metric([path.parent.name, result], count)
            for family, numbers in zip((turns, feedback), joins, strict=True):
                for result, count in numbers.items():
                    family.add_metric([path.parent.name, result], count)
        yield from (ended, records, turns, feedback)


def _joins(counts: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Answered turns and feedback by their result, from `JoinCounts.flat`. Empty without a serving log."""
    if not counts:
        return {}, {}
    unjoined, quarantined = (
        sum(count for name, count in counts.items() if name.startswith(prefix))
        for prefix in ("turns unjoined: ", "feedback quarantined: ")
    )
    return (
        {"joined": counts["answered"] - unjoined, "unjoined": unjoined},
        {
            "joined": counts["joined_feedback"],
            "quarantined": quarantined,
            "duplicate": counts["duplicate_feedback"],
        },
    )


def _counter(name: str, text: str, values: Iterable[tuple[str, float]], label: str = "") -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label] if label else [])
    for word, value in values:
        family.add_metric([word] if label else [], float(value))
    return family


def _gauge(name: str, text: str, values: Iterable[tuple[str, float]], label: str = "") -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label] if label else [])
    for word, value in values:
        family.add_metric([word] if label else [], float(value))
    return family
