"""Faults of the table: each is begun at a moment of a run, lasts a while, and ends by itself.

A fault is a context manager over the stack; the block inside waits for as long as the fault lasts.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import psutil

from tests import waiting
from tests.chaos.machine import Machine
from tests.chaos.proxy import Mode
from tests.chaos.stack import SILENCE_S, Stack

Moment = Literal["ingest", "rollout", "train", "register"]
MOMENTS: tuple[Moment, ...] = ("ingest", "rollout", "train", "register")
Preparation = Callable[[Stack], AbstractContextManager[None]]
_STOPPED_S = SILENCE_S + 30.0
"""Time for which a process is stopped: longer than a run may be silent."""
_PROCESS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, for how long it lasts, and the moments of a run at which it means something."""

    name: str
    text: str
    """What is done, for the table."""
    lasts_s: float
    begin: Callable[[Stack, str], AbstractContextManager[None]]
    """Begins the fault in a run of this id; its end is that of the block."""
    prepare: Preparation | None = None
    """What has to be there before the run begins."""
    on_gpu: bool = False
    """It begins when the machine `gpu`, not the driver, begins the stage."""
    ends_stage: bool = False
    """The stage ends with it, so that it has to begin once more."""
    moments: tuple[Moment, ...] = MOMENTS

    def play(self, stack: Stack, run: str, *, longest_s: float = math.inf) -> None:
        """Let it happen from its begin to its end, which comes after `longest_s` at the latest."""
        with self.begin(stack, run):
            time.sleep(min(self.lasts_s, longest_s))


def _machine(stack: Stack, pool: str) -> Machine:
    return stack.cpu if pool == "cpu" else stack.gpu


def _process(stack: Stack, target: str, run: str) -> tuple[Machine, psutil.Process]:
    """The process that is meant: the driver, a stage on `gpu`, or a worker."""
    pool = "cpu" if target in ("driver", "cpu worker") else "gpu"
    machine = _machine(stack, pool)

    def find() -> psutil.Process | None:
        if target == "driver":
            return machine.flow_run(run)
        return machine.flow_run() if target == "stage" else machine.worker()

    return machine, waiting.until(f"the process of the {target}", find, patience_s=_PROCESS_S)


@contextmanager
def _signalled(number: signal.Signals, target: str, stack: Stack, run: str) -> Iterator[None]:
    machine, process = _process(stack, target, run)
    machine.send(number, process)
    yield
    if number == signal.SIGSTOP and process.is_running():
        process.send_signal(signal.SIGCONT)


@contextmanager
def _without_database(stack: Stack, _: str) -> Iterator[None]:
    stack.cluster.stop()
    yield
    stack.cluster.start()


@contextmanager
def _without_prefect(stack: Stack, _: str) -> Iterator[None]:
    stack.prefect.stop(at_once=True)
    yield
    stack.start_prefect()


@contextmanager
def _store(mode: Mode, stack: Stack, _: str) -> Iterator[None]:
    for machine in stack.machines:
        machine.store.mode = mode
    yield
    for machine in stack.machines:
        machine.store.mode = "pass"


@contextmanager
def _registry(mode: Mode, stack: Stack, _: str) -> Iterator[None]:
    stack.mlflow_proxy.mode = mode
    yield
    stack.mlflow_proxy.mode = "pass"


@contextmanager
def _full(pool: str, stack: Stack, _: str) -> Iterator[None]:
    with _machine(stack, pool).full_disk():
        yield


@contextmanager
def _changeable_clock(pool: str, stack: Stack) -> Iterator[None]:
    _machine(stack, pool).restart(changeable_clock=True)
    try:
        yield
    finally:
        _machine(stack, pool).restart()


@contextmanager
def _other_time(pool: str, by: int, stack: Stack, _: str) -> Iterator[None]:
    _machine(stack, pool).set_clock(by)
    yield


def _signals() -> list[Fault]:
    faults = []
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        for target in ("driver", "cpu worker", "gpu worker", "stage"):
            stops = number == signal.SIGSTOP
            lasts = f" for {_STOPPED_S:.0f} s, then SIGCONT" if stops else ""
            faults.append(
                Fault(
                    name=f"{number.name.lower()}-{target.replace(' ', '-')}",
                    text=f"{number.name} of the {target}{lasts}",
                    lasts_s=_STOPPED_S if stops else 0.0,
                    begin=partial(_signalled, number, target),
                    on_gpu=target in ("gpu worker", "stage"),
                    ends_stage=not stops,
                    moments=("rollout", "train") if target in ("gpu worker", "stage") else MOMENTS,
                )
            )
    return faults


def _all() -> list[Fault]:
    minute, long = 60.0, 120.0
    return [
        *_signals(),
        Fault(name="postgres-0", text="PostgreSQL crashes and starts at once", lasts_s=0, begin=_without_database),
        Fault(name="postgres-20", text="PostgreSQL away for 20 s", lasts_s=20, begin=_without_database),
        Fault(name="postgres-120", text="PostgreSQL away for 2 min", lasts_s=long, begin=_without_database),
        Fault(name="prefect-60", text="Prefect's server killed, back after 60 s", lasts_s=60, begin=_without_prefect),
        Fault(name="s3-refused", text="S3 refuses for 60 s", lasts_s=minute, begin=partial(_store, "refuse")),
        Fault(name="s3-slow", text="S3 answers .3 s late a packet for 60 s", lasts_s=60, begin=partial(_store, "slow")),
        Fault(name="s3-hangs", text="S3 hangs for 60 s", lasts_s=minute, begin=partial(_store, "hang")),
        Fault(name="s3-cut", text="S3 cuts its replies for 20 s", lasts_s=20, begin=partial(_store, "cut")),
        Fault(name="s3-503", text="S3 answers 503 for 60 s", lasts_s=minute, begin=partial(_store, "unavailable")),
        Fault(name="mlflow-refused", text="MLflow away for 60 s", lasts_s=minute, begin=partial(_registry, "refuse")),
        Fault(name="mlflow-hangs", text="MLflow hangs for 60 s", lasts_s=minute, begin=partial(_registry, "hang")),
        *(
            Fault(
                name=f"disk-{pool}",
                text=f"the disk of the machine {pool} is full for 60 s",
                lasts_s=minute,
                begin=partial(_full, pool),
                on_gpu=pool == "gpu",
                moments=MOMENTS if pool == "cpu" else ("rollout", "train"),
            )
            for pool in ("cpu", "gpu")
        ),
        *(
            Fault(
                name=f"clock-{pool}",
                text=f"the clock of the machine {pool} goes 10 min {way} from one second to the next",
                lasts_s=0,
                begin=partial(_other_time, pool, by),
                prepare=partial(_changeable_clock, pool),
                on_gpu=pool == "gpu",
                moments=MOMENTS if pool == "cpu" else ("rollout", "train"),
            )
            for pool, way, by in (("cpu", "ahead", 600), ("gpu", "back", -600))
        ),
    ]


FAULTS = {fault.name: fault for fault in _all()}
