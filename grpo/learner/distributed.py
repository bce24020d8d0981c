"""Process group of a distributed update, and its launch under torchrun on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from pydantic import BaseModel, ConfigDict
from torch import distributed, nn

import grpo.errors
from grpo.artifacts import Artifact
from grpo.config.renderer import RendererSettings
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError

T = TypeVar("T")

METRICS, ERROR, MEETING = "metrics.json", "error.json", "meeting"
_LOOPBACK = {name: "lo" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
"""Network interface of the processes. Without it gloo and NCCL would listen on the interface of the host name."""
_NO_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun would open a port on every interface, and its processes would unpickle whatever arrives there."""
_REQUEST = "request.json"
_STDERR_CHARACTERS = 2000
"""Characters of the workers' standard error that the message shows."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Rank and size of the processes that share an update. Size 1 needs no communication."""

    rank: int = 0
    size: int = 1

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part: every size-th item."""
        return items[self.rank :: self.size]

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, by rank."""
        if self.size == 1:
            return list(items)
        parts: list[Any] = [None] * self.size
        distributed.all_gather_object(parts, list(items))
        return list(chain.from_iterable(parts))

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process."""
        return any(self.gather([flag]))

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of all processes in place. A process without a pass adds zeros."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in trained if parameter.grad is not None])
        distributed.all_reduce(flat)
        for parameter, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)


class UpdateRequest(BaseModel):
    """Arguments of an update, for each of its processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scored: tuple[Path, ...]
    parent: Path
    base: Path
    target: Path
    settings: TrainingSettings
    seed: int
    iteration: int
    base_artifact: Artifact | None
    renderer: RendererSettings | None = None
    """Renderer of the rollouts, if it is not the chat template's."""
    samplers: tuple[str, ...] = ()
    """Earlier policies of a continuous rollout, see `grpo.learner.update.update`."""
    launcher: int
    """Id of the process that waits for the result. Workers end when it is gone."""


class ErrorReport(BaseModel):
    """Error of a worker: class name and message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    message: str


class WorkerLost(BrokenExecutor):
    """Raised if a process of an update died. The checkpoint is unchanged, so the update can be retried."""


class WorkerFailed(RuntimeError):
    """Raised if a process of an update ended with an error that would occur again in a retry."""


def run_workers(request: UpdateRequest) -> bytes:
    """Run an update in `settings.processes` processes, and return the metrics of rank 0 as JSON.

    If a worker raises a `GRPOError`, it is raised here again. Any other error of a worker raises `WorkerFailed`. If a
    worker dies without an error report, or all take longer than `update_timeout_s` seconds, `WorkerLost` is raised.
    """
    processes, timeout_s = request.settings.processes, request.settings.update_timeout_s
    if torch.cuda.is_available() and processes > torch.cuda.device_count():
        raise ConfigError(
            f"training.processes is {processes}, but this machine has {torch.cuda.device_count()} accelerators. "
            "Lower it, because each process needs one"
        )
    with tempfile.TemporaryDirectory(prefix="grpo-update-") as name:
        folder = Path(name)
        (folder / _REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        command += ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-id", "update"]
        command += ["--rdzv-endpoint", str(folder / "rendezvous")]
        with subprocess.Popen(
            [*command, "-m", "grpo.learner.worker", str(folder / _REQUEST)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **_NO_STORE, **(_LOOPBACK if sys.platform == "linux" else {})},
            start_new_session=True,  # so that a terminal's Ctrl-C reaches only the process that waits
        ) as torchrun:
            try:
                _, stderr = torchrun.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                raise WorkerLost(
                    f"{processes} training processes took longer than {timeout_s:g} s (training.update_timeout_s) and "
                    f"were ended. The checkpoint {request.parent} is unchanged"
                ) from error
            finally:
                if torchrun.poll() is None:
                    _kill_tree(psutil.Process(torchrun.pid))
        if (folder / ERROR).is_file():
            report = ErrorReport.model_validate_json((folder / ERROR).read_bytes())
            raise getattr(grpo.errors, report.kind, WorkerFailed)(report.message)
        if torchrun.returncode:
            raise WorkerLost(
                f"one of {processes} training processes died (torchrun ended with {torchrun.returncode}). Nothing was "
                f"written, the checkpoint {request.parent} is unchanged. Standard error: "
                f"{stderr[-_STDERR_CHARACTERS:]}"
            )
        return (folder / METRICS).read_bytes()


def _kill_tree(torchrun: psutil.Process) -> None:
    """Kill torchrun and its workers one by one, because torchrun starts each worker in a separate session."""
    torchrun.suspend()  # so that it starts no more workers
    for process in [*torchrun.children(recursive=True), torchrun]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
