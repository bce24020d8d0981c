"""Runs an update in several processes under torchrun, on one machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import BrokenExecutor
from pathlib import Path

from pydantic import BaseModel, ConfigDict

import grpo.errors
from grpo.artifacts import Artifact
from grpo.config.training import TrainingSettings
from grpo.errors import GRPOError

_SHOWN = 2000
"""Characters of the workers' last words in the message."""


class Order(BaseModel):
    """What each process is asked to do: the arguments of `update`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scored: tuple[Path, ...]
    parent: Path
    base: Path
    target: Path
    settings: TrainingSettings
    seed: int
    iteration: int
    base_artifact: Artifact | None


class Refusal(BaseModel):
    """Why a process cannot do it: a `GRPOError` by its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    message: str


class WorkerLost(BrokenExecutor):
    """A process of an update died; the checkpoint that it started from is untouched, so a second try may mend it."""


def run_workers(order: Order) -> bytes:
    """Carry an order out in `settings.processes` processes; returns the metrics of the first as JSON.

    Raises the `GRPOError` of a process that refused, and `WorkerLost` when one died without a word.
    """
    processes = order.settings.processes
    with tempfile.TemporaryDirectory(prefix="grpo-update-") as name:
        folder = Path(name)
        (folder / "order.json").write_text(order.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        done = subprocess.run(
            [*command, "-m", "grpo.learner.worker", str(folder / "order.json")],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if (folder / "refusal.json").is_file():
            refusal = Refusal.model_validate_json((folder / "refusal.json").read_bytes())
            kind = getattr(grpo.errors, refusal.kind, GRPOError)
            raise kind(refusal.message)
        if done.returncode:
            raise WorkerLost(
                f"one of {processes} training processes died (torchrun ended with {done.returncode}); nothing was "
                f"written, the checkpoint {order.parent} stands. Last words: {done.stderr[-_SHOWN:]}"
            )
        return (folder / "metrics.json").read_bytes()
