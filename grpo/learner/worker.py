"""One of the processes that share an update; `torchrun` starts it with the path of an order.

torchrun --nproc-per-node 2 -m grpo.learner.worker order.json
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb
from types import TracebackType

import torch
from torch import distributed

from grpo.learner.launch import ERROR, METRICS, ErrorReport, UpdateRequest
from grpo.learner.update import update
from grpo.learner.world import ProcessGroup

_LOOK_S = 1.0
"""Between two looks at whether anybody still waits for the answer."""


def main(path: Path) -> None:
    """Do this process's part; the first one leaves the metrics, one that cannot do it the reason."""
    request = UpdateRequest.model_validate_json(path.read_bytes())
    sys.excepthook = _Reason(path.with_name(ERROR))
    threading.Thread(target=_end_without, args=(request.launcher,), daemon=True).start()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    process_group = ProcessGroup(rank=distributed.get_rank(), size=distributed.get_world_size())
    metrics = update(
        request.scored,
        request.parent,
        request.base,
        request.target,
        request.settings,
        seed=request.seed,
        iteration=request.iteration,
        base_artifact=request.base_artifact,
        process_group=process_group,
    )
    if process_group.rank == 0:
        path.with_name(METRICS).write_text(metrics.model_dump_json(), encoding="utf-8")
    distributed.destroy_process_group()


class _Reason:
    """Writes down which error ended this process, whole or not at all, and shows it; the first to write is believed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not _is_of_another_process(traceback):
            report = ErrorReport(kind=kind.__name__, message=f"{error}")
            mine = self._path.with_suffix(f".{os.getpid()}")
            mine.write_text(report.model_dump_json(), encoding="utf-8")
            with suppress(FileExistsError):
                os.link(mine, self._path)
        sys.__excepthook__(kind, error, traceback)


def _is_of_another_process(traceback: TracebackType | None) -> bool:
    """Whether an error came up while talking to the others: what one of them died of is not known here."""
    frames = extract_tb(traceback)
    return bool(frames) and "/torch/distributed/" in frames[-1].filename


def _end_without(launcher: int) -> None:
    """End this process when the one that waits for it is gone, so that a retry does not train beside it."""
    while True:
        try:
            os.kill(launcher, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
