"""Runs whose process has ended without a word: they start again, and what they had finished is a cache hit."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import psutil
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
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

from flows.local.processes import end, processes_with_variable

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""A run that crashes under a worker that lives is started this often; then it stays crashed."""
_LOST = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED)
_LOOKED_AT = 200
"""The newest runs of a pool that are in such a state."""
_given_up: set[UUID] = set()
"""Crashed states that are known to be a run's last, so that the server is not asked again and again."""
_CLAIM_S = 60.0
"""A worker puts its name on a run a moment after it has taken it; one that is older than this and has none was lost."""


def put_back(pool: str, worker: str, *, gone: bool) -> list[UUID]:
    """Let every run that this worker has lost start again; returns which.

    `gone`: the worker has ended, so that nobody watches over its runs. What still goes on of them is ended, whatever
    state they are in. Otherwise a run is lost when it crashed, or is said to be running and has no process; these are
    counted, by the crashes that the server knows of.
    """
    with get_client(sync_client=True) as client:
        unfinished = [run for run in _unfinished(client, pool) if run.state_id not in _given_up]
        found = [run for run in unfinished if _held_by(worker, run)]
        if gone:
            end_processes({run.id for run in found})
            lost = list(_as_they_are_now(client, [run.id for run in found]))
        else:
            alive = running_flows() if any(run.state_type == StateType.RUNNING for run in found) else {}
            seen = {run.id: run.state_id for run in found if _is_lost(run, alive)}
            still = [run for run in _as_they_are_now(client, seen) if run.state_id == seen[run.id]]
            lost = [crashed for run in still if (crashed := _declare_crashed(client, run)) is not None]
        return [run.id for run in lost if _settle(client, run)]


def running_flows() -> dict[UUID, list[psutil.Process]]:
    """The processes of this machine that belong to a flow run, its own and those that it started."""
    found: dict[UUID, list[psutil.Process]] = {}
    for run, process in processes_with_variable("PREFECT__FLOW_RUN_ID"):
        with suppress(ValueError):  # somebody's own idea of an id
            found.setdefault(UUID(run), []).append(process)
    return found


def end_processes(runs: Collection[UUID]) -> None:
    """End every process of these flow runs, at once: stages leave their results whole or not at all."""
    end(lambda: [one for run, those in running_flows().items() if run in runs for one in those])


def _unfinished(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(_LOST)))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        sort=FlowRunSort.ID_DESC,
        limit=_LOOKED_AT,
    )


def _holder(run: FlowRun) -> str | None:
    """The worker whose name is on this run."""
    name = run.labels.get("prefect.worker.name")
    return None if name is None else str(name)


def _held_by(worker: str, run: FlowRun) -> bool:
    """Whether this worker has taken the run; one without a name may still get it, and is anybody's when it did not."""
    if (holder := _holder(run)) is not None:
        return holder == worker
    if run.state is None or run.state_type == StateType.RUNNING:
        return False
    return (datetime.now(UTC) - run.state.timestamp).total_seconds() > _CLAIM_S


def _is_lost(run: FlowRun, alive: Collection[UUID]) -> bool:
    """Whether a run of a worker that lives does not go on by itself; `alive` are those that have a process."""
    if run.state_type == StateType.RUNNING:
        return run.id not in alive
    return run.state_type == StateType.CRASHED or _holder(run) is None


def _as_they_are_now(client: SyncPrefectClient, runs: Iterable[UUID]) -> Iterator[FlowRun]:
    """Those of the runs that have not ended by themselves meanwhile, and were not deleted."""
    for run in runs:
        with suppress(ObjectNotFound):
            if (now := client.read_flow_run(run)).state_type in _LOST:
                yield now


def _declare_crashed(client: SyncPrefectClient, run: FlowRun) -> FlowRun | None:
    """The lost run; one that is said to be running is called what it is, unless the server knows better."""
    if run.state_type != StateType.RUNNING:
        return run
    if _set(client, run, Crashed(message="Its process ended without a word.")):
        return run.model_copy(update={"state_type": StateType.CRASHED})
    return None


def _settle(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Schedule a lost run again, or end it where that was asked for; returns whether it is scheduled."""
    if run.state_type == StateType.CANCELLING:
        _set(client, run, Cancelled(message="Its worker ended while it was being cancelled."))
        return False
    if run.state_type == StateType.CRASHED and _crashes(client, run) >= ATTEMPTS:
        if run.state_id is not None:
            _given_up.add(run.state_id)
        return False
    return _set(client, run, AwaitingRetry(message="It was lost; it starts again from its finished stages."))


def _crashes(client: SyncPrefectClient, run: FlowRun) -> int:
    """How often a worker took this run and it crashed, before it was running or later."""
    crashes, taken = 0, False
    for state in client.read_flow_run_states(run.id):
        if state.type == StateType.CRASHED and taken:
            crashes, taken = crashes + 1, False  # the worker may report it once more
        taken = taken or state.type == StateType.PENDING
    return crashes


def _set(client: SyncPrefectClient, run: FlowRun, state: State[object]) -> bool:
    """Put the run into this state, where the server agrees; returns whether it does."""
    with suppress(ObjectNotFound):
        forced = run.state_type == StateType.CANCELLING
        if client.set_flow_run_state(run.id, state, force=forced).status == SetStateStatus.ACCEPT:
            logger.warning("%s (%s) is %s now: %s", run.name, run.id, state.name, state.message)
            return True
    return False
