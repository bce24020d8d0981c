"""Remote stages that hang while the heartbeats of their flow runs go on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
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


class _ProxyPage(BaseHTTPRequestHandler):
    def answer(self) -> None:
        page = b"<html>Sign in</html>"
        self.send_response(200)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


ENDING = """
import sys, threading
from grpo_flows.steps.stalls import _end

watcher = threading.Thread(target=_end, args=("stage hanging made no progress", sys.argv[1]))
watcher.start()
watcher.join()
"""


def test_a_stage_that_hangs_is_ended_although_its_state_cannot_be_set():
    """A proxy answers with its own page. An error of the watching thread would leave the stage alive for ever."""
    with HTTPServer(("127.0.0.1", 0), _ProxyPage) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = os.environ | {"PREFECT_API_URL": f"http://127.0.0.1:{proxy.server_port}/api"}
        arguments = [sys.executable, "-c", ENDING, str(uuid.uuid4())]
        process = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
        proxy.shutdown()
    assert process.returncode == 1, process.stderr
    assert "could not be set, and follows from the end of the process" in process.stderr
