"""Remote stages that hang while the heartbeats of their flow runs go on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from grpo.identity.code import source_digest
from tests.places import ROOT

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]

HANGING = """
import sys, threading, time
from grpo import progress
from grpo_flows import stage
from grpo_tasks.execution.stage import uncached_stage
from grpo_tasks.split import SplitResult

@uncached_stage
def hanging(*, store: str) -> SplitResult:
    for step in range(6):
        time.sleep(0.5)
        progress.report("hanging", step, 6)
    print("stands", flush=True)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

stage.STAGES["hanging"] = hanging
flow = stage.run_stage.with_options(flow_run_name=sys.argv[1])
flow("hanging", {"store": sys.argv[2]}, sys.argv[3], no_progress_s=2.0)
"""


def test_a_stage_that_hangs_is_ended_and_its_flow_run_crashes(tmp_path: Path):
    """It is left alone while it reports progress, which takes longer than the bound, and ended after it stands."""
    name = f"hanging {tmp_path.name}"
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, name, str(tmp_path), source_digest()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stands\n"
    began = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode not in (0, None), errors
    assert time.monotonic() - began < 60
    assert "lock.acquire()" in errors or "in hanging" in errors, "the stacks of its threads"
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
    assert run.state is not None
    assert run.state.is_crashed()
    assert run.state.message == "stage hanging made no progress for 2 s (compute.gpu_stages.no_progress_s)"
