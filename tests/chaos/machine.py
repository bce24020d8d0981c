"""A machine of the stack: a worker with a home, a disk and a way to the object store of its own, kept running.

It is kept running as Kubernetes or systemd would: a worker that has ended is started again after some seconds, and
with a worker every process of its machine ends, as the processes of a container do.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from grpo_local.workers.fork_server import NO_RUN, RUN
from tests.chaos.proxy import Proxy
from tests.places import ROOT
from tests.shifted_clock import VARIABLES, clock_variables, set_clock

_RESTART_S = 3.0
_GRACE_S = 20.0
"""Time between SIGTERM and SIGKILL, as `terminationGracePeriodSeconds` is."""
_DISK = "512m"
_LIMITS = {"cpu": "4", "gpu": "1"}
"""Flow runs at once, as in deployments/kubernetes."""
_STAGED = re.compile(r"[0-9a-f]{32}(\.lock)?")
"""Names of `grpo.storage.locks.scratch_path`."""


class Machine:
    """A worker of one pool; `with` mounts its disk, starts it and keeps it running."""

    def __init__(self, folder: Path, pool: str, environment: Mapping[str, str], store: Proxy) -> None:
        self.pool, self.store = pool, store
        self.disk = folder / pool
        self.home = self.disk / "home"
        self.log = folder / f"{pool}.log"
        self._clock = folder / f"{pool}.clock"
        self._environment = {
            **environment,
            "GRPO_HOME": str(self.home),
            "PREFECT_HOME": str(self.disk / "prefect"),
            "TMPDIR": str(self.disk / "tmp"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.port}",
        }
        self._worker: subprocess.Popen[bytes] | None = None
        self._ends = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Machine:
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(self.disk)], check=True)
        (self.disk / "tmp").mkdir(mode=0o700)
        self._start()
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._keeper.join()
        self._kill_everything()
        subprocess.run(["umount", "--lazy", str(self.disk)], check=True)

    def worker(self) -> psutil.Process | None:
        """The process of the worker, if it lives."""
        with suppress(psutil.NoSuchProcess):
            if self._worker is not None and self._worker.poll() is None:
                return psutil.Process(self._worker.pid)
        return None

    def flow_run(self, run: str | None = None) -> psutil.Process | None:
        """The first process of a flow run that is going on here, or of this one."""
        for process in self._processes():
            with suppress(psutil.Error):
                if (given := process.environ().get(RUN, NO_RUN)) != NO_RUN and run in (None, given):
                    return process
        return None

    def send(self, number: signal.Signals, process: psutil.Process) -> None:
        """Send a signal to the worker or to the process of a flow run; a worker that ends takes its machine along."""
        process.send_signal(number)
        if self._worker is not None and process.pid == self._worker.pid:
            if number == signal.SIGTERM:
                with suppress(psutil.TimeoutExpired):
                    process.wait(_GRACE_S)
            if number in (signal.SIGTERM, signal.SIGKILL):
                self._kill_everything()

    def restart(self, *, changeable_clock: bool = False) -> None:
        """Start the worker again, with a clock that `set_clock` changes or with the clock of this machine."""
        self._environment = {key: value for key, value in self._environment.items() if key not in VARIABLES}
        if changeable_clock:
            self._clock.mkdir(exist_ok=True)
            self._environment |= clock_variables(self._clock, 0)
        self._kill_everything()

    def set_clock(self, seconds: int) -> None:
        """Let the clock of this machine be off by this much, from one second to the next."""
        set_clock(self._clock, seconds)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Leave no byte on its disk while the block runs."""
        ballast = self.disk / "ballast"
        self.fill(ballast)
        try:
            yield
        finally:
            ballast.unlink()

    @staticmethod
    def fill(ballast: Path) -> None:
        """Write a file until the disk is full."""
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            block = bytes(1 << 20)
            while len(block) > 0:
                if file.write(block) < len(block):
                    block = block[: len(block) // 2]

    def staging_folders(self) -> list[Path]:
        """Folders in which stages have written files before they stored them."""
        return sorted({path.parent for path in self._staged()})

    def leftovers(self) -> list[str]:
        """Paths, and their locks, that stages have neither stored nor removed."""
        return sorted(str(path.relative_to(self.disk)) for path in self._staged())

    def _staged(self) -> list[Path]:
        paths = (self.disk / "tmp").glob(f"grpo-{os.getuid()}/*/*")
        return [path for path in paths if _STAGED.fullmatch(path.name)]

    def _processes(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter(["environ", "status"]):
            environment = process.info["environ"] or {}
            if environment.get("GRPO_HOME") == str(self.home) and process.info["status"] != psutil.STATUS_ZOMBIE:
                yield process

    def _kill_everything(self) -> None:
        for process in self._processes():
            with suppress(psutil.Error):
                process.kill()
        if self._worker is not None:
            self._worker.wait()

    def _keep(self) -> None:
        while not self._ends.wait(1.0):
            if self.worker() is None:
                self._kill_everything()
                if not self._ends.wait(_RESTART_S):
                    self._start()

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self._worker = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "prefect",
                    "worker",
                    "start",
                    "--pool",
                    self.pool,
                    "--limit",
                    _LIMITS[self.pool],
                ],
                env={**self._environment, "OMP_NUM_THREADS": "1"},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
