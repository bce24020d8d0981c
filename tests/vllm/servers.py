"""`vllm serve` as a process of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_local.managed_process import free_port
from tests.places import ROOT
from tests.vllm.engine import MEMORY

START_S = 600
EXACT = ("--dtype", "float32", "--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill")
"""Options for log-probabilities that can be trained on, on a CPU."""
ROLLOUTS = (
    *EXACT,
    *("--enable-lora", "--max-loras", "2"),
    *("--middleware", "grpo.serving.vllm_server.middleware.RolloutRoutes"),
    *("--worker-extension-cls", "grpo.serving.vllm_server.worker.WeightLoader"),
)
"""Options of a server that takes rollouts."""


class Server:
    """A running `vllm serve`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process, self.url = process, url

    def kill(self) -> None:
        """Kill the server and its engine at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@contextmanager
def vllm_server(model: Path, home: Path, *options: str) -> Iterator[Server]:
    """Serve a model with keys of `home` until the block ends."""
    port, log = free_port(), home / "vllm.log"
    command = [
        *(str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "1024", "--enforce-eager", "--gpu-memory-utilization", str(MEMORY), *options),
    ]
    environment = {**os.environ, "GRPO_HOME": str(home), "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        server = Server(process, f"http://127.0.0.1:{port}")
        try:
            _wait(f"{server.url}/health", process, log)
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    server.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
            time.sleep(0.5)
    raise TimeoutError(log.read_text(encoding="utf-8")[-3000:])
