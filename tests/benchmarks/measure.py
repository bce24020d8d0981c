"""Measurements: a whole command, alternating runs, memory in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import psutil
import torch

from grpo_local import settings
from tests.places import ROOT

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Cost:
    """Time and memory of a command."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """Peak memory of its first process."""
    peak_tree_mib: float
    """Peak memory of all its processes together, shared pages counted once, looked at once a second."""


def environment_at(home: Path) -> dict[str, str]:
    """Environment variables of a command that has its own records in `home`, and needs no network."""
    environment = {**os.environ, **settings.offline_variables(), **settings.home_variables(home)}
    environment.pop("PREFECT_API_URL", None)
    return environment


def command_cost(
    command: list[str], environment: Mapping[str, str] | None = None, *, log: IO[str] | None = None, check: bool = True
) -> Cost:
    """Run a command to its end, with its output in `log`; one that fails ends the benchmark, unless `check` is off."""
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log or subprocess.DEVNULL, stderr=log) as process:
        ended = threading.Event()
        peaks = [0.0]

        def watch() -> None:
            while not ended.wait(1.0):
                peaks.append(_tree_bytes(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        ended.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
    if check and process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Cost(
        wall_s=time.perf_counter() - began,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        peak_tree_mib=max(peaks) / 2**20,
    )


def _tree_bytes(pid: int) -> float:
    """Proportional set size of a process and its descendants now."""
    total = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
    return total


def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a module's function in a fresh process, which shares no memory, thread or cache with this one."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def use_all_cores() -> None:
    """Compute on all cores in this process, or with as many threads as OMP_NUM_THREADS says."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))


def seconds(act: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def device_seconds(act: Callable[[], object]) -> float:
    """Seconds until the GPU, if there is one, has done all of a call."""

    def whole() -> None:
        act()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds(whole)


def in_turn(sides: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, float]:
    """Median of each side, measured A B A B …, so that a slow moment of the machine meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, measure in sides.items():
            taken[name].append(measure())
    return {name: statistics.median(values) for name, values in taken.items()}


def peak_growth_mib(act: Callable[[], object]) -> float:
    """Most memory that this process held while it acted, above what it held before. Linux only."""
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the high-water mark
    act()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return (peak * 1024 - before) / 2**20
