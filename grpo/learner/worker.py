"""Worker of distributed updates. torchrun starts it with the path of an `UpdateRequest` and the id of its launcher.

torchrun --nproc-per-node 2 -m grpo.learner.worker request.json 4711

It goes on with the requests that follow, see `grpo.learner.worker_group`, unless it is called with `--once`.

Processes of an update meet through files in a folder that only their owner can read. They communicate over the loopback
interface, or, on several nodes, over the network that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from traceback import extract_tb
from types import TracebackType

import torch
from torch import distributed

from grpo.learner.distributed import ERROR, MEETING, METRICS, ErrorReport, ProcessGroup, UpdateRequest
from grpo.learner.update import run_update
from grpo.policy.transformers.model_cache import model_cache
from grpo.storage.files import write_atomically

_POLL_S = 1.0
"""Seconds between two checks that the launcher is alive."""
_NEXT_S = 0.05
"""Seconds between two looks for the next request."""


def main(path: Path, launcher: int, *, once: bool = False) -> None:
    """Run this process's part of each update, and end when process `launcher` is gone. Rank 0 writes the metrics."""
    threading.Thread(target=_exit_without_launcher, args=(launcher,), daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    settings = UpdateRequest.model_validate_json(path.read_bytes()).settings
    # a file, because a port would answer every user of the machine, and torch unpickles what it reads there
    distributed.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=path.with_name(MEETING).absolute().as_uri(),
        timeout=timedelta(seconds=settings.update_timeout_s),  # others wait while rank 0 writes a large checkpoint
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    process_group = ProcessGroup(rank=distributed.get_rank(), size=distributed.get_world_size())
    for request in [path] if once else _requests(path):
        _run(request, process_group)
    distributed.destroy_process_group()


def _requests(first: Path) -> Iterator[Path]:
    """The first request, and the others when they come, without end."""
    yield first
    for number in count(1):
        path = first.parent / str(number) / first.name
        while not path.exists():
            time.sleep(_NEXT_S)
        yield path


def _run(path: Path, process_group: ProcessGroup) -> None:
    """Run one update. It has ended in all processes when its metrics are there, and no process holds a model then."""
    sys.excepthook = _ErrorWriter(path.with_name(ERROR))
    metrics = run_update(UpdateRequest.model_validate_json(path.read_bytes()), process_group)
    model_cache.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    distributed.barrier()
    if process_group.rank == 0:
        write_atomically(path.with_name(METRICS), metrics.model_dump_json())


class _ErrorWriter:
    """Exception hook that writes the error to a file atomically. The first process to write wins."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not _is_of_another_process(traceback):
            report = ErrorReport(kind=kind.__name__, message=f"{error}")
            own_file = self._path.with_name(f"{self._path.name}.{socket.gethostname()}.{os.getpid()}")
            own_file.write_text(report.model_dump_json(), encoding="utf-8")
            with suppress(FileExistsError):
                os.link(own_file, self._path)
        sys.__excepthook__(kind, error, traceback)


def _is_of_another_process(traceback: TracebackType | None) -> bool:
    """True if the error is one of communication, because another process failed. Its reason is not known here.

    A functional collective waits in `torch/_ops.py`. So does an operation on a process's own shard, which `_dispatch`
    calls, and an error there is its own.
    """
    files = [frame.filename for frame in extract_tb(traceback)]
    while files and files[-1].endswith("/torch/_ops.py"):
        files.pop()
    return bool(files) and "/torch/distributed/" in files[-1] and not files[-1].endswith("/tensor/_dispatch.py")


def _exit_without_launcher(launcher: int) -> None:
    """End this process when the launcher is gone, so that it does not go on while a retry trains."""
    while True:
        try:
            os.kill(launcher, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), once="--once" in sys.argv)
