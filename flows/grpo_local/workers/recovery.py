"""Recovery of runs that a worker of this machine has lost. Their finished stages are cache hits.

If a run crashes after it has begun, an automation of Prefect's server starts it again, whatever machine it was on
(`grpo_local.automations`). This module notices what only this machine can know within seconds: the process of a
run is gone, or a worker is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Crashed

from grpo_local.prefect_pages import STABLE, all_pages
from grpo_local.processes import KILL_TIMEOUT_S, kill_all, processes_with_variable

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Attempts of a run that crashes before it begins. After them it stays crashed."""
_LOST = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED)
_given_up: set[UUID] = set()
"""Final crashed states, which are not requested again."""
_RECENT = timedelta(days=1)
"""Age up to which a crash is looked at while the worker lives."""
_CLAIM_S = 60.0
"""Time within which a worker labels a run that it took. An older run without a label was lost."""


def reschedule_lost_runs(client: SyncPrefectClient, pool: str, worker: str, *, worker_dead: bool) -> list[UUID]:
    """Schedule every run that this worker has lost again, and return their ids.

    With `worker_dead`, the remaining processes of its runs are killed, whatever state the runs are in. If the worker
    lives, a run in state Running that has no process is set to Crashed, so that an automation starts it again. A run
    that crashed before it began is scheduled again here, up to `ATTEMPTS` times.
    """
    runs = _unfinished(client, pool, worker_dead=worker_dead)
    unfinished = (run for run in runs if run.state_id not in _given_up)
    held = [run for run in unfinished if _held_by(worker, run)]
    if worker_dead:
        try:
            kill_flow_runs({run.id for run in held})
        except TimeoutError as error:  # e.g. it waits for a device or a network disk, and will not go on after that
            logger.warning("%s. A worker takes their flow runs when they have", error)
        lost = list(_still_unfinished(client, [run.id for run in held]))
    else:
        alive = flow_run_processes() if any(run.state_type == StateType.RUNNING for run in held) else {}
        states = {run.id: run.state_id for run in held if _is_lost(run, alive)}
        still = [run for run in _still_unfinished(client, states) if run.state_id == states[run.id]]
        lost = [run for run in still if not _declare_crashed(client, run)]
    return [run.id for run in lost if _settle(client, run)]


def flow_run_processes() -> dict[UUID, list[psutil.Process]]:
    """The processes of each flow run on this machine, with their children."""
    processes: dict[UUID, list[psutil.Process]] = {}
    for run, process in processes_with_variable("PREFECT__FLOW_RUN_ID"):
        with suppress(ValueError):  # not an id of Prefect
            processes.setdefault(UUID(run), []).append(process)
    return processes


def kill_flow_runs(runs: Collection[UUID], *, wait_s: float = KILL_TIMEOUT_S) -> None:
    """Kill every process of these flow runs. This is safe, because stages write their results atomically.

    Raises `TimeoutError` if a process does not end within `wait_s`.
    """

    def processes() -> list[psutil.Process]:
        return [process for run, group in flow_run_processes().items() if run in runs for process in group]

    kill_all(processes, wait_s=wait_s)


def _unfinished(client: SyncPrefectClient, pool: str, *, worker_dead: bool) -> Iterator[FlowRun]:
    """Runs of a pool in a state of `_LOST`.

    Prefect keeps crashed runs, so their number grows, and the supervisor reads them every two seconds. While the worker
    lives, only the crashed runs of the last day are read. If it is dead, e.g. after a weekend, all of them are read.
    """
    if worker_dead:
        return _runs(client, pool, *_LOST)
    recent = FlowRunFilterEndTime(after_=datetime.now(UTC) - _RECENT)
    others = (state for state in _LOST if state != StateType.CRASHED)
    return chain(_runs(client, pool, *others), _runs(client, pool, StateType.CRASHED, end_time=recent))


def _runs(client: SyncPrefectClient, pool: str, *states: StateType, **where: Any) -> Iterator[FlowRun]:
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))), **where)
    return all_pages(
        lambda offset: client.read_flow_runs(
            flow_run_filter=chosen,
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            sort=FlowRunSort(STABLE),
            offset=offset,
        ),
        key=attrgetter("id"),
    )


def _holder(run: FlowRun) -> str | None:
    """Name of the worker that took this run."""
    name = run.labels.get("prefect.worker.name")
    return None if name is None else str(name)


def _held_by(worker: str, run: FlowRun) -> bool:
    """True if this worker took the run, or if no worker labelled it in time."""
    if (holder := _holder(run)) is not None:
        return holder == worker
    if run.state is None or run.state_type == StateType.RUNNING:
        return False
    return (datetime.now(UTC) - run.state.timestamp).total_seconds() > _CLAIM_S


def _is_lost(run: FlowRun, alive: Collection[UUID]) -> bool:
    """True if a run of a live worker does not continue by itself. `alive` are the runs that have a process."""
    if run.state_type == StateType.RUNNING:
        return run.id not in alive
    if run.state_type == StateType.CRASHED:
        return run.run_count == 0
    return _holder(run) is None


def _still_unfinished(client: SyncPrefectClient, runs: Iterable[UUID]) -> Iterator[FlowRun]:
    """Yield these runs with their present state, except runs that have ended or were deleted."""
    for run in runs:
        with suppress(ObjectNotFound):
            if (now := client.read_flow_run(run)).state_type in _LOST:
                yield now


def _declare_crashed(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Set a run to Crashed if its state is Running, because its process is gone. Returns False for another state."""
    if run.state_type != StateType.RUNNING:
        return False
    _set(client, run, Crashed(message="Its process ended without reporting a state."))
    return True


def _settle(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Schedule a lost run again, or cancel it if that was requested. Returns True if it is scheduled."""
    if run.state_type == StateType.CANCELLING:
        _set(client, run, Cancelled(message="Its worker ended while it was being cancelled."))
        return False
    if run.state_type == StateType.CRASHED and _crashes(client, run) >= ATTEMPTS:
        if run.state_id is not None:
            _given_up.add(run.state_id)
        return False
    return _set(client, run, AwaitingRetry(message="Its process was lost. It continues from its finished stages."))


def _crashes(client: SyncPrefectClient, run: FlowRun) -> int:
    """Number of times that this run crashed after a worker took it."""
    crashes, taken = 0, False
    for state in client.read_flow_run_states(run.id):
        if state.type == StateType.CRASHED and taken:
            crashes, taken = crashes + 1, False  # the worker may report it once more
        taken = taken or state.type == StateType.PENDING
    return crashes


def _set(client: SyncPrefectClient, run: FlowRun, state: State[object]) -> bool:
    """Set the state of the run. Returns True if the server accepts it."""
    with suppress(ObjectNotFound):
        forced = run.state_type == StateType.CANCELLING
        if client.set_flow_run_state(run.id, state, force=forced).status == SetStateStatus.ACCEPT:
            logger.warning("flow run %s (%s) was set to %s: %s", run.name, run.id, state.name, state.message)
            return True
    return False
