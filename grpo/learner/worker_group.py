"""The processes of distributed updates on this machine, started by torchrun and kept from update to update.

A process takes seconds to start and to import torch and transformers, more than many updates take. So after an update
its processes wait for the next one, without a model, and read it from a folder:

    request.json    → metrics.json, or error.json        the first update
    1/request.json  → 1/metrics.json, or 1/error.json    the second one

Processes that have failed, or that have waited too long, are ended. All processes of an update meet through files, so
that no port is opened at which torch reads what anybody sends. With several nodes, an update starts new processes on
each of them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Hashable
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from pathlib import Path

import psutil

import grpo.errors
from grpo.config.training import TrainingSettings
from grpo.learner.distributed import (
    ERROR,
    METRICS,
    NODES,
    REQUEST,
    UPDATE_PREFIX,
    ErrorReport,
    UpdateRequest,
    check_devices,
    nodes_folder,
)
from grpo.storage.files import write_atomically

_LOOPBACK = {name: "lo" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
"""Network interface of the processes on one machine. Without it gloo and NCCL would listen on the interface of the host
name."""
_NO_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Without it torchrun would open a port on every interface, and its processes would unpickle whatever arrives there."""
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Without it the processes of torchrun would import modules from the working folder, in which others may write."""
_JOIN_S = 600
"""Time in which all nodes have to join an update."""
RELEASE = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Without it glibc keeps the memory of gathered layers for later, and a process with sharded weights takes twice as
much on a CPU."""
_STDERR_CHARACTERS = 2000
"""Characters of the workers' standard error that the message shows."""
_LOOK_S = 0.05
"""Interval at which the launcher looks for metrics and error reports."""
_IDLE_S = 600.0
"""Time after which processes without an update are ended. A rollout that takes longer makes their start negligible."""


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
    check_devices(request.settings)
    group = idle_group.take(request.settings) or WorkerGroup(request)
    try:
        metrics = group.run(request)
    except BaseException:
        group.close()
        raise
    if request.settings.nodes == 1:
        idle_group.keep(group, request.settings)
    else:
        group.close()
    return metrics


class WorkerGroup:
    """The processes on this machine, and the folder in which they get updates."""

    def __init__(self, request: UpdateRequest) -> None:
        """Start the processes with their first update."""
        self._place = nodes_folder() if request.settings.nodes > 1 else None
        prefix = UPDATE_PREFIX if self._place else "grpo-update-"
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._place))
        self._updates = 0
        self._launcher = os.getpid()
        write_atomically(self._folder / REQUEST, request.model_dump_json())
        with (self._folder / "stderr").open("wb") as stderr:
            self._torchrun = start_torchrun(request, self._folder, stderr=stderr.fileno())

    @property
    def is_alive(self) -> bool:
        """True if torchrun is running, this process has started it, and the folder is still there."""
        return os.getpid() == self._launcher and self._torchrun.poll() is None and self._folder.is_dir()

    def run(self, request: UpdateRequest) -> bytes:
        """Run an update, see `run_workers`. The first one must be the update that the group was made for."""
        update = self._folder / str(self._updates) if self._updates else self._folder
        if self._updates:
            update.mkdir()
            write_atomically(update / REQUEST, request.model_dump_json())
        self._updates += 1
        self._wait(update, request)
        if (update / ERROR).is_file():
            report = ErrorReport.model_validate_json((update / ERROR).read_bytes())
            raise getattr(grpo.errors, report.kind, WorkerFailed)(report.message)
        if (update / METRICS).is_file() and not self._torchrun.returncode:
            metrics = (update / METRICS).read_bytes()
            if update != self._folder:
                shutil.rmtree(update)
            return metrics
        stderr = (self._folder / "stderr").read_text(encoding="utf-8", errors="replace")
        if "RendezvousTimeoutError" in stderr:
            raise WorkerLost(
                f"not all of {request.settings.nodes} nodes joined the update within {_JOIN_S} s (training.nodes). "
                f"Start `grpo train-node` on each other node, with {NODES}={self._place}. The checkpoint "
                f"{request.parent} is unchanged"
            )
        raise WorkerLost(
            f"one of {request.settings.workers} training processes died (torchrun ended with "
            f"{self._torchrun.returncode}). Nothing was written, the checkpoint {request.parent} is unchanged. "
            f"Standard error: {stderr[-_STDERR_CHARACTERS:]}"
        )

    def _wait(self, update: Path, request: UpdateRequest) -> None:
        """Wait for the metrics, for an error report or for the end of torchrun. Raises `WorkerLost` after the timeout.

        Several nodes end their processes after an update, and this one waits for the end of its own.
        """
        settings = request.settings
        ends = time.monotonic() + settings.update_timeout_s
        while self.is_alive:
            if (update / ERROR).is_file() or (settings.nodes == 1 and (update / METRICS).is_file()):
                return
            if time.monotonic() >= ends:
                raise WorkerLost(
                    f"{settings.workers} training processes took longer than {settings.update_timeout_s:g} s "
                    f"(training.update_timeout_s) and were ended. The checkpoint {request.parent} is unchanged"
                )
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End the processes, and remove the folder. A fork of the process that started them leaves both alone."""
        if os.getpid() != self._launcher:
            return
        if self._torchrun.poll() is None:
            with suppress(psutil.NoSuchProcess):
                kill_tree(psutil.Process(self._torchrun.pid))
            self._torchrun.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class _IdleGroup:
    """The group that waits for the next update of this process, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: WorkerGroup | None = None
        self._key: Hashable = None
        self._timer: threading.Timer | None = None

    def take(self, settings: TrainingSettings) -> WorkerGroup | None:
        """The group, if it can run an update with these settings. A group that cannot is ended."""
        with self._lock:
            group, key = self._group, self._key
            self._forget()
        if group is None or (key == process_key(settings) and group.is_alive):
            return group
        group.close()
        return None

    def keep(self, group: WorkerGroup, settings: TrainingSettings) -> None:
        """Let a group wait for the next update. An update in another thread may have kept one as well, which ends."""
        with self._lock:
            other = self._group
            self._forget()
            self._group, self._key = group, process_key(settings)
            self._timer = threading.Timer(_IDLE_S, self.close, (group,))
            self._timer.daemon = True
            self._timer.start()
        if other is not None:
            other.close()

    def close(self, group: WorkerGroup | None = None) -> None:
        """End the group that waits, if it is `group` or None is given."""
        with self._lock:
            waiting = self._group
            if waiting is None or group not in (None, waiting):
                return
            self._forget()
        waiting.close()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._group = self._timer = None


def process_key(settings: TrainingSettings) -> Hashable:
    """Everything that a process gets when it starts: number of processes, sharding, working folder and environment."""
    return settings.processes, settings.sharding, Path.cwd(), tuple(sorted(os.environ.items()))


idle_group = _IdleGroup()
atexit.register(idle_group.close)


def start_torchrun(request: UpdateRequest, folder: Path, *, stderr: int | None) -> subprocess.Popen[str]:
    """Start this node's processes of the update in a folder. They end when this process does."""
    settings = request.settings
    command = [sys.executable, "-P", "-m", "torch.distributed.run"]
    command += ["--nnodes", str(settings.nodes), "--nproc-per-node", str(settings.processes)]
    command += ["--rdzv-backend", "c10d", "--rdzv-conf", f"store_type=file,join_timeout={_JOIN_S}"]
    command += ["--rdzv-id", "update", "--rdzv-endpoint", str(folder / "rendezvous")]
    command += ["-m", "grpo.learner.worker", str(folder / REQUEST), str(os.getpid())]
    command += ["--once"] if settings.nodes > 1 else []
    one_machine = _LOOPBACK if sys.platform == "linux" and settings.nodes == 1 else {}
    release = RELEASE if settings.sharding == "sharded" else {}
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
        env={**os.environ, **_NO_STORE, **_SAFE_PATH, **one_machine, **release},
        start_new_session=True,  # so that a terminal's Ctrl-C reaches only the process that waits
    )


def kill_tree(torchrun: psutil.Process) -> None:
    """Kill torchrun and its workers one by one, because torchrun starts each worker in a separate session."""
    torchrun.suspend()  # so that it starts no more workers
    for process in [*torchrun.children(recursive=True), torchrun]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
