"""Processes of this user: their identity, their environment, and their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

KILL_TIMEOUT_S = 30.0
"""Time that killed processes have to end."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 22 - 3
"""Field 22 of /proc/PID/stat, in ticks since the boot, counted after the name, because the name may have blanks. The
first field after the name is field 3."""


def process_identity(process: psutil.Process) -> str:
    """Identity of a process that no other process with the same id has.

    It does not depend on the system clock, except on systems without /proc. Raises `OSError` or `psutil.NoSuchProcess`
    if the process has ended.
    """
    if not _BOOT.exists():
        return str(process.create_time())
    after_name = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return f"{_BOOT.read_text(encoding='ascii').strip()} {int(after_name[_STARTED])}"


def processes_with_variable(name: str) -> Iterator[tuple[str, psutil.Process]]:
    """This user's processes with an environment variable, each after its value."""
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}  # another user's environment is not readable
        if (value := environment.get(name)) and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield value, process


def kill_all(find: Callable[[], list[psutil.Process]], *, wait_s: float = KILL_TIMEOUT_S) -> None:
    """Kill the listed processes until the list is empty, because new children may start while it kills.

    Raises `TimeoutError` if a process does not end within `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while processes := find():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[process.pid for process in processes]} were killed and did not end")
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
