"""Metrics of a server in Prometheus' format, named as by vLLM and OpenTelemetry's conventions for generative AI.

The GenAI conventions are those of opentelemetry-semantic-conventions 0.66b2. Labels are the version and closed sets of
words, never users, keys or conversations, so that the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from grpo.scenarios.served.records import ServedTurn
from grpo.serving.chat_response import Usage
from grpo.serving.service import Service

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKENS = tuple(2.0**power for power in range(1, 16))
_LABELS = ["model_name", "arm"]
Family = CounterMetricFamily | GaugeMetricFamily


class Metrics:
    """Metrics of one service: histograms of its turns, and its counts at the time of a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, buckets=buckets, registry=self.registry)

        self._first = histogram("gen_ai_server_time_to_first_token_seconds", "Time to first token.", _SECONDS)
        self._each = histogram(
            "gen_ai_server_time_per_output_token_seconds", "Time per token after the first.", _SECONDS
        )
        self._whole = histogram("gen_ai_server_request_duration_seconds", "Duration of an answered turn.", _SECONDS)
        self._prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a turn.", _TOKENS)
        self._generated = histogram("vllm:request_generation_tokens", "Generated tokens of a turn.", _TOKENS)

    def observe(self, turn: ServedTurn, usage: Usage) -> None:
        """Count a turn that is in the log."""
        labels = (turn.model, turn.arm)
        if turn.first_token_s is not None:
            self._first.labels(*labels).observe(turn.first_token_s)
            if usage.completion > 1:
                self._each.labels(*labels).observe((turn.latency_s - turn.first_token_s) / (usage.completion - 1))
        if turn.status == "answered":
            self._whole.labels(*labels).observe(turn.latency_s)
            self._prompt.labels(*labels).observe(usage.prompt)
            self._generated.labels(*labels).observe(usage.completion)

    def watch(self, service: Service) -> None:
        """Collect the counts of a service at each scrape."""
        self.registry.register(_ServiceCounts(service))

    def render(self) -> bytes:
        """Text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def values(self) -> dict[str, float]:
        """Value of each series, by its name with labels."""
        samples = [sample for family in self.registry.collect() for sample in family.samples]
        return {f"{sample.name}{_labels(sample.labels)}": sample.value for sample in samples}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


class _ServiceCounts(Collector):
    """Counts of a service and of the engines of its versions."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        """See `Collector`."""
        service, counts = self._service, self._service.counts
        yield _counter("grpo_turns", "Turns in the log.", "status", counts.turns)
        yield _counter(
            "grpo_requests_joined", "Requests, by how they were joined to a conversation.", "by", counts.joined
        )
        yield _counter("vllm:admission_rejections", "Requests that were not admitted.", "reason", counts.refused)
        yield _counter("grpo_turns_unlogged", "Turns that the log refused.", "reason", {"storage": counts.unlogged})
        yield _counter("grpo_swaps", "Versions that took over.", "reason", {"alias": service.versions.swaps})
        yield _gauge(
            "grpo_conversation_turns_in_memory", "Turns that conversations go on from.", len(service.conversations)
        )
        yield _gauge("grpo_ready", "1 while requests are accepted.", float(service.ready))
        engines = {
            version.served.version: stats
            for version in service.versions.loaded
            if (stats := version.stats()) is not None
        }
        for name, text, field in (
            ("vllm:num_requests_running", "Turns in the batch.", "running"),
            ("vllm:num_requests_waiting", "Turns that wait for a slot.", "waiting"),
            ("vllm:kv_cache_tokens", "Tokens whose keys and values are in slots.", "kv_tokens"),
            ("vllm:prefix_cache_bytes", "Keys and values of idle conversations.", "prefix_cache_bytes"),
        ):
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            for model, stats in engines.items():
                family.add_metric([model], float(getattr(stats, field)))
            yield family
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of the slots' capacity in use.", labels=["model_name"]
        )
        for model, stats in engines.items():
            usage.add_metric([model], stats.kv_tokens / max(1, stats.kv_capacity))
        yield usage
        for name, text, field in (
            ("vllm:prefix_cache_queries", "Prompt tokens that were looked up.", "prefix_queries"),
            ("vllm:prefix_cache_hits", "Prompt tokens that were not read again.", "prefix_hits"),
            ("vllm:prompt_tokens", "Tokens of all forward passes.", "tokens_processed"),
            ("vllm:generation_tokens", "Tokens that were generated.", "tokens_generated"),
        ):
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            for model, stats in engines.items():
                counter.add_metric([model], float(getattr(stats, field)))
            yield counter


def _counter(name: str, text: str, label: str, values: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for word, value in values.items():
        family.add_metric([str(word)], float(value))
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
