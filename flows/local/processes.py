"""Processes of this machine: which one it is, what its environment says, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTED = 22 - 3
"""Field 22 of /proc/PID/stat, in ticks since the boot; the first after the name (which may hold blanks) is field 3."""
_END_TIMEOUT_S = 30.0


def process_identity(process: psutil.Process) -> str:
    """What tells it from every other process that had or will have its id; to set the clock changes nothing.

    Raises `OSError` or `psutil.NoSuchProcess` when it is gone.
    """
    if not _BOOT.exists():
        return str(process.create_time())
    after_name = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return f"{_BOOT.read_text(encoding='ascii').strip()} {int(after_name[_STARTED])}"


def processes_with_variable(name: str) -> Iterator[tuple[str, psutil.Process]]:
    """The processes of this user in whose environment there is such a variable, after its value."""
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}  # none of another user's process
        if (value := environment.get(name)) and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield value, process


def end(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill what is found, and look again until there is nothing: children are born meanwhile.

    Raises `TimeoutError` when something does not end.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    while found := find():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[process.pid for process in found]} do not end, although they were killed")
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.05)
