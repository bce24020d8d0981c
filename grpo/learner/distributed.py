"""Process group of a distributed update, and its launch under torchrun on one machine or as the first of several.

The machines of an update are its nodes. They meet through files of a folder that all of them see, so that no node opens
a port at which torch reads what anybody sends. See `grpo.learner.nodes` for the other nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
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
from grpo.storage.files import write_atomically

T = TypeVar("T")

METRICS, ERROR, MEETING, REQUEST = "metrics.json", "error.json", "meeting", "request.json"
NODES = "GRPO_NODES"
"""Environment variable with the folder that all nodes see."""
UPDATE_PREFIX = "update-"
"""Begin of the names of the folders of updates in the folder of the nodes."""
_LOOPBACK = {name: "lo" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
"""Network interface of the processes on one machine. Without it gloo and NCCL would listen on the interface of the host
name."""
_NO_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun would open a port on every interface, and its processes would unpickle whatever arrives there."""
_JOIN_S = 600
"""Time in which all nodes have to join an update."""
RELEASE = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Without it glibc keeps the memory of gathered layers for later, and a process with sharded weights takes twice as
much on a CPU."""
_LOOK_S = 1.0
"""Interval at which the launcher looks for an error report."""
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
    teacher: Path | None = None
    """Checkpoint of the teacher of a distillation, if it is another model."""
    hints: dict[str, str] = {}
    """What only the teacher reads, by the id of the scenario."""
    sources: str | None = None
    """Digest of the first node's sources. Other nodes refuse the update if theirs differ."""


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
    """Run an update in `settings.processes` processes on each of `settings.nodes`, and return rank 0's metrics as JSON.

    If a worker raises a `GRPOError`, it is raised here again. Any other error of a worker raises `WorkerFailed`. If a
    worker dies without an error report, if nodes do not join, or if all take longer than `update_timeout_s` seconds,
    `WorkerLost` is raised.
    """
    settings, timeout_s = request.settings, request.settings.update_timeout_s
    check_devices(settings)
    place = nodes_folder() if settings.nodes > 1 else None
    with tempfile.TemporaryDirectory(prefix=UPDATE_PREFIX if place else "grpo-update-", dir=place) as name:
        folder = Path(name)
        write_atomically(folder / REQUEST, request.model_dump_json())
        with start_torchrun(request, folder, stderr=subprocess.PIPE) as torchrun:
            try:
                stderr = _wait(torchrun, folder / ERROR, timeout_s=timeout_s)
            except TimeoutError as error:
                raise WorkerLost(
                    f"{settings.workers} training processes took longer than {timeout_s:g} s "
                    f"(training.update_timeout_s) and were ended. The checkpoint {request.parent} is unchanged"
                ) from error
            finally:
                if torchrun.poll() is None:
                    kill_tree(psutil.Process(torchrun.pid))
        if (folder / ERROR).is_file():
            report = ErrorReport.model_validate_json((folder / ERROR).read_bytes())
            raise getattr(grpo.errors, report.kind, WorkerFailed)(report.message)
        if "RendezvousTimeoutError" in stderr:
            raise WorkerLost(
                f"not all of {settings.nodes} nodes joined the update within {_JOIN_S} s (training.nodes). Start `grpo "
                f"train-node` on each other node, with {NODES}={place}. The checkpoint {request.parent} is unchanged"
            )
        if torchrun.returncode:
            raise WorkerLost(
                f"one of {settings.workers} training processes died (torchrun ended with {torchrun.returncode}). "
                f"Nothing was written, the checkpoint {request.parent} is unchanged. Standard error: "
                f"{stderr[-_STDERR_CHARACTERS:]}"
            )
        return (folder / METRICS).read_bytes()


def _wait(torchrun: subprocess.Popen[str], error: Path, *, timeout_s: float) -> str:
    """Wait for the end of torchrun, or for an error report, and return the standard error so far.

    Without the look at the report, the first node would wait for nodes that cannot take part. Raises `TimeoutError`.
    """
    ends = time.monotonic() + timeout_s
    while True:
        try:
            return torchrun.communicate(timeout=min(_LOOK_S, max(0.0, ends - time.monotonic())))[1]
        except subprocess.TimeoutExpired:
            if error.is_file():
                return ""
            if time.monotonic() >= ends:
                raise TimeoutError from None


def nodes_folder() -> Path:
    """Folder of GRPO_NODES. Raises `ConfigError` if it is not set, or not a folder that only its owner can write."""
    place = os.environ.get(NODES)
    if not place:
        raise ConfigError(
            f"training.nodes needs {NODES}, a folder that all nodes see at the same path. Set it on each node"
        )
    folder = Path(place).absolute()
    if not folder.is_dir():
        raise ConfigError(f"{NODES} names {folder}, which is not a folder. Make it, or mount it on this node")
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise ConfigError(
            f"{NODES} names {folder}, which others can write to. What is in it is run: make it yours only, with chmod "
            f"700 {folder}"
        )
    return folder


def check_devices(settings: TrainingSettings) -> None:
    """Raise `ConfigError` if this machine has too few accelerators, or names no network for its nodes."""
    if torch.cuda.is_available() and settings.processes > torch.cuda.device_count():
        raise ConfigError(
            f"training.processes is {settings.processes}, but this machine has {torch.cuda.device_count()} "
            "accelerators. Lower it, because each process needs one"
        )
    variable = "NCCL_SOCKET_IFNAME" if torch.cuda.is_available() else "GLOO_SOCKET_IFNAME"
    if settings.nodes > 1 and not os.environ.get(variable):
        raise ConfigError(
            f"{variable} is not set, so training.nodes {settings.nodes} would use any network. Set it to the interface "
            "of a network that only the nodes reach, because their connections are not encrypted and ask for no login"
        )


def start_torchrun(request: UpdateRequest, folder: Path, *, stderr: int | None) -> subprocess.Popen[str]:
    """Start this node's processes of the update in a folder. They end when this process does."""
    settings = request.settings
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--nnodes", str(settings.nodes), "--nproc-per-node", str(settings.processes)]
    command += ["--rdzv-backend", "c10d", "--rdzv-conf", f"store_type=file,join_timeout={_JOIN_S}"]
    command += ["--rdzv-id", "update", "--rdzv-endpoint", str(folder / "rendezvous")]
    command += ["-m", "grpo.learner.worker", str(folder / REQUEST), str(os.getpid())]
    one_machine = _LOOPBACK if sys.platform == "linux" and settings.nodes == 1 else {}
    release = RELEASE if settings.sharding == "sharded" else {}
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
        env={**os.environ, **_NO_STORE, **one_machine, **release},
        start_new_session=True,  # so that a terminal's Ctrl-C reaches only the process that waits
    )


def kill_tree(torchrun: psutil.Process) -> None:
    """Kill torchrun and its workers one by one, because torchrun starts each worker in a separate session."""
    torchrun.suspend()  # so that it starts no more workers
    for process in [*torchrun.children(recursive=True), torchrun]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
