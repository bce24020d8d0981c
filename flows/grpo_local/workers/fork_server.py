"""Fork server: a process that has imported what a remote stage needs, and forks a new process for each stage.

A fresh Python process imports Prefect, PyTorch and transformers for ten seconds before a stage begins. Here a worker
starts one such process (`fork_servers`), which imports them once. It never runs a stage itself: each stage
gets a process that nothing ran in before, so that a stage that leaks, fills the memory, changes globals or is killed
harms only itself. Models are therefore not kept between stages, and neither is a CUDA context, because it does not
survive a fork.

The worker writes one line of JSON to the socket for each stage, with the variables of the run, and reads lines:

    {"forked": 4711}                    the process of the last request
    {"ended": 4711, "returncode": -9}   a process has ended
    {"changed": "…/grpo/tables.py"}     nothing was forked, because this module was changed after it was imported
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from grpo_local import settings

IDLE_MINUTES = "GRPO_FORK_SERVER_IDLE_MINUTES"
"""Variable with the minutes after which a server without a stage ends. With 0 no server is started."""
RUN = "PREFECT__FLOW_RUN_ID"
NO_RUN = "-" * 36
"""Value of `RUN` in the server's own environment. It is as long as the id of a run, which is written in its place."""
RUN_PREFIX = "PREFECT__"
"""Begin of the names of variables that Prefect sets for each run."""
PRELOADED = ("prefect.flow_engine", "grpo_flows.stage", *settings.LEARNER)


class ForkServer:
    """The loop of the process. It ends when the worker and all runs have ended, or after `idle_s` without a run."""

    def __init__(self, worker: socket.socket, *, idle_s: float) -> None:
        self._started = time.time()
        settings.import_packages(*PRELOADED)
        self._stamps = {path: stamp for path in _module_files() if (stamp := _stamp(path)) is not None}
        self._worker, self._idle_s = worker, idle_s
        self._lines = worker.makefile("rb")
        self._children: set[int] = set()
        self._retired = False

    def serve(self) -> dict[str, str] | None:
        """Serve until there is nothing left to do. In a new process it returns the variables of the run.

        Raises `OSError` if no process can be forked, e.g. because the memory is full. The worker then starts a new
        server.
        """
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        with selectors.DefaultSelector() as events, wake, woken:
            events.register(self._worker, selectors.EVENT_READ)
            events.register(woken, selectors.EVENT_READ)
            while self._children or not self._retired:
                ready = events.select(None if self._children else self._idle_s)
                if not ready and not self._children:
                    return None
                with suppress(BlockingIOError):
                    woken.recv(4096)
                self._reap()
                if any(key.fileobj is self._worker for key, _ in ready):
                    line = self._lines.readline()
                    if not line:
                        self._retired = True
                        events.unregister(self._worker)
                        continue
                    run: dict[str, str] = json.loads(line)
                    if self._fork(run[RUN]):
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        return run
            return None

    def _fork(self, run: str) -> bool:
        """Fork a process for a run. Returns True in the new process."""
        if (changed := self._changed_module()) is not None:
            self._retired = True
            self._send({"changed": changed})
            return False
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # so that a signal for the run reaches its children and not the server
            _write_run(run)
            np.random.seed()  # Python's own generators are seeded in a new process, NumPy's is not
            random.seed()
            self._lines.close()
            self._worker.close()
            return True
        with suppress(OSError):  # the new process may have done it, and ended
            os.setpgid(pid, pid)
        self._children.add(pid)
        self._send({"forked": pid})
        return False

    def _reap(self) -> None:
        for child in tuple(self._children):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                self._children.discard(pid)
                self._send({"ended": pid, "returncode": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, str | int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the worker has ended, which the next read notices
            self._worker.sendall(json.dumps(message).encode() + b"\n")

    def _changed_module(self) -> str | None:
        """First file of a module that has changed on disk since, or while, it was imported."""
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp or stamp[0] > self._started * 1e9:
                return path
        return None


def main(descriptor: int, idle_s: float) -> int:
    """Serve the worker at the other end of a socket, or in a forked child run its flow run. Returns the exit code."""
    run = ForkServer(socket.socket(fileno=descriptor), idle_s=idle_s).serve()
    if run is None:
        return 0
    for name in [name for name in os.environ if name.startswith(RUN_PREFIX)]:
        del os.environ[name]
    os.environ.update(run)
    from prefect.flow_engine import _main as run_flow  # what Prefect's worker starts with `python -m`

    return run_flow([run["PREFECT__FLOW_ENTRYPOINT"]])


def _write_run(run: str) -> None:
    """Write the run's id into the environment that other processes see, by which the processes of a run are found.

    The kernel shows the memory that the program was started with, which assignments to `os.environ` do not change.
    """
    assert len(run) == len(NO_RUN)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(RUN.encode()), run.encode("ascii"), len(run))


def _module_files() -> set[str]:
    return {str(file) for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None))}


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Time of the last change, size and inode. None if there is no such file, e.g. because it is in an archive."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), float(sys.argv[2])))
