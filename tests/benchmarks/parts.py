"""Parts of the benchmark, in the order of the page: a part is a module here with a function `measure`."""

from __future__ import annotations

from importlib import import_module

from tests.benchmarks.page import Findings

PARTS = (
    "pipeline",
    "step",
    "rollout",
    "rollout_real",
    "serve",
    "serve_real",
    "attack",
    "growth",
    "growth_data",
    "latency",
    "gpu",
    "ingest",
    "score",
    "gates",
    "iteration",
    "remote",
    "sharded",
    "race_real",
    "race_tasks",
    "real",
)


def run(part: str) -> Findings:
    """Measure one part; called in a process of its own."""
    findings: Findings = import_module(f"tests.benchmarks.{part}").measure()
    return findings
