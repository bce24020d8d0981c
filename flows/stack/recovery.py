"""Runs whose process has ended without a word: they start again, and what they had finished is a cache hit."""

from __future__ import annotations

import logging
from collections.abc import Collection
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
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import AwaitingRetry, Cancelled

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""A run whose process dies under a worker that lives is started this often; then it stays as it is."""
_LOOKED_AT = 200
"""The newest runs of a pool that are not at their end, or crashed."""


def put_back(pool: str, worker: str, *, gone: bool) -> list[UUID]:
    """Let every run that this worker has lost start again; returns which.

    `gone`: the worker has ended, so that nobody watches over its runs. What still goes on of them is ended, whatever
    state they are in. Otherwise a run is lost when it crashed, or is said to be running and has no process.
    """
    with get_client(sync_client=True) as client:
        found = [run for run in _unfinished(client, pool) if run.labels.get("prefect.worker.name", worker) == worker]
        if gone:
            end_processes({run.id for run in found})
            lost = found
        else:
            running = [run for run in found if run.state_type == StateType.RUNNING]
            alive = running_flows() if running else {}
            silent = [run for run in running if run.id not in alive]
            crashed = [run for run in found if run.state_type == StateType.CRASHED]
            lost = [run for run in (*silent, *crashed) if run.run_count < ATTEMPTS and _stands(client, run)]
        return [run.id for run in lost if _settle(client, run)]


def running_flows() -> dict[UUID, list[psutil.Process]]:
    """The processes of this machine that belong to a flow run, its own and those that it started."""
    found: dict[UUID, list[psutil.Process]] = {}
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}  # none of another user's process
        if (run := environment.get("PREFECT__FLOW_RUN_ID")) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.setdefault(UUID(run), []).append(process)
    return found


def end_processes(runs: Collection[UUID]) -> None:
    """End every process of these flow runs, at once: stages leave their results whole or not at all."""
    while processes := [one for run, those in running_flows().items() if run in runs for one in those]:
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=5)


def _unfinished(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    states = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED]
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
        sort=FlowRunSort.ID_DESC,
        limit=_LOOKED_AT,
    )


def _stands(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether the run is still in the state in which it was seen: one that has ended by itself was not lost."""
    return client.read_flow_run(run.id).state_type == run.state_type


def _settle(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Schedule a lost run again, or end it where that was asked for; returns whether it is scheduled."""
    if run.state_type == StateType.CRASHED and run.run_count >= ATTEMPTS:
        return False
    if run.state_type == StateType.CANCELLING:
        state: State[object] = Cancelled(message="Its worker ended while it was being cancelled.")
    else:
        state = AwaitingRetry(message="Its process ended without a word; it starts again from its finished stages.")
    client.set_flow_run_state(run.id, state, force=run.state_type == StateType.CANCELLING)
    logger.warning("%s (%s) was %s: %s", run.name, run.id, run.state_name, state.message)
    return run.state_type != StateType.CANCELLING
