"""Runs an update in several processes under torchrun, on one machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from pydantic import BaseModel, ConfigDict

import grpo.errors
from grpo.artifacts import Artifact
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError

METRICS, ERROR = "metrics.json", "refusal.json"
_SHOWN = 2000
"""Characters of the workers' last words in the message."""


class UpdateRequest(BaseModel):
    """What each process is asked to do: the arguments of `update`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scored: tuple[Path, ...]
    parent: Path
    base: Path
    target: Path
    settings: TrainingSettings
    seed: int
    iteration: int
    base_artifact: Artifact | None
    launcher: int
    """Process that waits for the answer; without it nobody needs one."""


class ErrorReport(BaseModel):
    """Why a process cannot do it: the error by its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    message: str


class WorkerLost(BrokenExecutor):
    """A process of an update died; the checkpoint that it started from is untouched, so a second try may mend it."""


class WorkerFailed(RuntimeError):
    """A process of an update ended with an error that a second try would meet again."""


def run_workers(request: UpdateRequest) -> bytes:
    """Carry an order out in `settings.processes` processes; returns the metrics of the first as JSON.

    Raises the `GRPOError` of a process that refused, `WorkerFailed` for any other error of one, and `WorkerLost` when
    one died without a word or all took longer than `update_timeout_s`.
    """
    processes, timeout_s = request.settings.processes, request.settings.update_timeout_s
    if torch.cuda.is_available() and processes > torch.cuda.device_count():
        raise ConfigError(
            f"training.processes is {processes}, and this machine has {torch.cuda.device_count()} accelerators; "
            "each process needs one"
        )
    with tempfile.TemporaryDirectory(prefix="grpo-update-") as name:
        folder = Path(name)
        (folder / "order.json").write_text(request.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        with subprocess.Popen(
            [*command, "-m", "grpo.learner.worker", str(folder / "order.json")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a terminal's Ctrl-C is for the process that waits
        ) as agent:
            try:
                _, words = agent.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise WorkerLost(
                    f"{processes} training processes took longer than {timeout_s:g} s (training.update_timeout_s) and "
                    f"were ended; the checkpoint {request.parent} stands"
                ) from error
            finally:
                if agent.poll() is None:
                    _end(psutil.Process(agent.pid))
        if (folder / ERROR).is_file():
            report = ErrorReport.model_validate_json((folder / ERROR).read_bytes())
            raise getattr(grpo.errors, report.kind, WorkerFailed)(report.message)
        if agent.returncode:
            raise WorkerLost(
                f"one of {processes} training processes died (torchrun ended with {agent.returncode}); nothing was "
                f"written, the checkpoint {request.parent} stands. Last words: {words[-_SHOWN:]}"
            )
        return (folder / METRICS).read_bytes()


def _end(agent: psutil.Process) -> None:
    """Kill torchrun and its workers, each of which it starts in a session of its own."""
    agent.suspend()  # so that it starts no other
    for process in [*agent.children(recursive=True), agent]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
