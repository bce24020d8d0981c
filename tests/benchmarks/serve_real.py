"""Serving of SmolLM2-135M-Instruct: `grpo serve` against other servers and against the sampler without one."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from grpo.policy.catalog import load_weights
from tests.benchmarks.page import Findings
from tests.benchmarks.serve import NO_VLLM, SCALE, server_starts
from tests.benchmarks.serve_rows import table
from tests.benchmarks.serve_sides import unending
from tests.benchmarks.serve_throughput import start, throughput
from tests.benchmarks.vllm_engine import PYTHON as VLLM_PYTHON
from tests.places import ROOT

SMOLLM2 = ROOT / ".models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "As above, with SmolLM2-135M-Instruct in float32, on the conversations of the support desk; all have all cores."


def measure() -> Findings:
    """Measure 64 streams of each server; about six minutes."""
    title = "Serving a real model"
    if not SMOLLM2.exists():
        return Findings(title=title, text=f"Not measured: `make {SMOLLM2.relative_to(ROOT)}` fetches the model.")
    with tempfile.TemporaryDirectory(prefix="grpo-serve-") as place, ExitStack() as stack:
        root = Path(place)
        folder = root / "smollm2"
        load_weights(str(SMOLLM2)).save(folder)
        unending(folder)
        vllm = folder if VLLM_PYTHON.exists() else None
        threads = str(len(os.sched_getaffinity(0)))
        sides = start(stack, server_starts(folder, vllm, root, options=("--set", f"engine.threads={threads}")))
        rates, bars = throughput("SmolLM2-135M", sides, 10 * SCALE, 4 * SCALE)
    left_out = "" if VLLM_PYTHON.exists() else f" Left out: {NO_VLLM}."
    return Findings(title=title, text=f"{TEXT}{left_out}", tables=(table(bars), rates))
