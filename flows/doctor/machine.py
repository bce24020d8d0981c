"""What the machine has: GPUs, memory, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import psutil
from fsspec.implementations.local import LocalFileSystem

from flows.doctor.installation import imported
from flows.doctor.places import nearest, protocol_known
from flows.local.checks import CheckResult, State

_GIB = 2**30
_LITTLE_MEMORY, _LITTLE_DISK, _NO_DISK = 2 * _GIB, 5 * _GIB, _GIB // 2


def accelerator() -> Iterator[CheckResult]:
    """GPUs that PyTorch can use."""
    torch = imported("torch")
    if torch is None:
        return
    if not torch.cuda.is_available():
        yield CheckResult(
            area="machine", name="gpu", state="absent", found="none that PyTorch sees: models run on the CPU"
        )
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield CheckResult(area="machine", name=f"gpu {index}", state="ok", found=found)


def memory() -> Iterator[CheckResult]:
    """What is free of this machine's memory, or of what its container may use."""
    known = psutil.virtual_memory()
    total, free = known.total, known.available
    limit, used = (_number(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None and limit < total:
        total, free = limit, min(free, limit - used)
    little = free < _LITTLE_MEMORY
    yield CheckResult(
        area="machine",
        name="memory",
        state="warning" if little else "ok",
        found=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {os.cpu_count()} cores",
        remedy="end other programs, or lower training.microbatch_tokens; --dry-run estimates what a run needs"
        if little
        else "",
    )


def _number(file: Path) -> int | None:
    """What a file of the kernel says; None where it is not there, or says `max`."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def disk(home: Path, store: str) -> Iterator[CheckResult]:
    """Room where runs leave their records and artifacts."""
    places = {"home": home}
    file_system, root = fsspec.core.url_to_fs(store) if protocol_known(store) else (None, "")
    if isinstance(file_system, LocalFileSystem):
        places["store"] = Path(root)
    for name, place in places.items():
        free = shutil.disk_usage(nearest(place)).free
        state: State = "problem" if free < _NO_DISK else "warning" if free < _LITTLE_DISK else "ok"
        remedy = "" if state == "ok" else f"free space, or set {'GRPO_HOME' if name == 'home' else 'store'} elsewhere"
        yield CheckResult(
            area="machine", name=f"disk of {name}", state=state, found=f"{free / _GIB:.1f} GiB free", remedy=remedy
        )
