"""Training runs of a Prefect server, for the server of a model.

They are started from deployments, and only numbers and switches in the config of a deployment can be changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import httpx

from grpo.serving.protocol.api_errors import APIError, invalid_request, overloaded
from grpo.serving.routes.operations import Job, JobStatus, Number
from grpo_local.login import CLIENT, login
from grpo_local.prefect_pages import STABLE, all_pages
from grpo_local.servers import running_prefect_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

FLOWS = ("train", "retrain", "tune")
"""Flows that the server may start. It also reports their runs."""
UPDATE = "train"
"""Stage that ends an iteration."""
_RETRY_S = 30.0
_RECENT = timedelta(days=1)
_MOST_ENDED = 50
"""Ended runs of each flow that are listed."""
T = TypeVar("T")


class PrefectJobs:
    """See `grpo.serving.routes.operations.Orchestrator`: the Prefect server of PREFECT_API_URL, or of a home.

    The home's server may start, stop and change its port at any time.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    async def start(self, deployment: str, overrides: Mapping[str, Number]) -> Job:
        """See `Orchestrator`."""
        flow = deployment.partition("/")[0]
        if flow not in FLOWS:
            raise invalid_request(
                f"config: flow {flow!r} does not train. Name a deployment of {', '.join(FLOWS)}",
                param="config",
                code="invalid_value",
            )

        def call(client: SyncPrefectClient) -> Job:
            from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

            try:
                known = client.read_deployment_by_name(deployment)
            except ObjectNotFound as error:
                message = f"no deployment {deployment}. Deploy it with grpo deploy, or name another one"
                raise APIError(404, message, param="config", code="config_not_found") from error
            parameters = override(known.parameters, overrides)
            try:
                run = client.create_flow_run_from_deployment(known.id, parameters=parameters, tags=["api"])
            except PrefectHTTPStatusError as error:
                if error.response.status_code not in (409, 422):
                    raise
                message = f"the flow refuses these parameters: {error.response.json()['detail']}"[:500]
                raise invalid_request(message, param="overrides", code="invalid_value") from error
            return _job(run, deployment, 0)

        return await self._ask(call)

    async def job(self, id: UUID) -> Job:
        """See `Orchestrator`."""

        return await self._ask(lambda client: _read(client, id))

    async def cancel(self, id: UUID) -> Job:
        """See `Orchestrator`. If the run has begun, a worker ends its processes. Otherwise the run ends at once."""

        def call(client: SyncPrefectClient) -> Job:
            from prefect.states import Cancelling

            job = _read(client, id)
            if job.ended is None and job.status != "cancelling":
                client.set_flow_run_state(id, Cancelling())
                job = _read(client, id)
            if job.status not in ("cancelling", "cancelled"):
                raise APIError(409, f"training run {id} is {job.status} already", code="job_ended")
            return job

        return await self._ask(call)

    async def recent(self) -> Sequence[Job]:
        """See `Orchestrator`."""

        def call(client: SyncPrefectClient) -> list[Job]:
            return [
                _job(run, _deployment(client, run, flow), _iterations(client, run))
                for flow in FLOWS
                for run in _recent(client, flow)
            ]

        return await self._ask(call)

    async def scale(self, pool: str, limit: int) -> int:
        """See `Orchestrator`."""

        def call(client: SyncPrefectClient) -> int:
            from prefect.client.schemas.actions import WorkPoolUpdate
            from prefect.exceptions import ObjectNotFound

            try:
                client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=limit))
                now = client.read_work_pool(pool).concurrency_limit
            except ObjectNotFound as error:
                message = f"no work pool {pool}"
                raise APIError(404, message, param="work_pool.name", code="work_pool_not_found") from error
            assert now is not None
            return now

        return await self._ask(call)

    async def _ask(self, call: Callable[[SyncPrefectClient], T]) -> T:
        """Result of a call on a thread. Raises `APIError` 503 if no server answers."""
        return await asyncio.to_thread(self._call, call)

    def _call(self, call: Callable[[SyncPrefectClient], T]) -> T:
        url = running_prefect_server(self._home)
        if url is None:
            raise overloaded("no Prefect server is running. Start it with grpo up", retry_after_s=_RETRY_S)
        from prefect.client.orchestration import SyncPrefectClient
        from prefect.exceptions import PrefectHTTPStatusError

        auth = os.environ.get(CLIENT) or (None if os.environ.get("PREFECT_API_URL") else login(self._home, "prefect"))
        try:
            with SyncPrefectClient(url, auth_string=auth) as client:
                return call(client)
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            message = f"Prefect's server does not answer ({type(error).__name__}). Start it with grpo up, or restart "
            message += "this server with PREFECT_API_URL set to one that runs"
            raise overloaded(message, retry_after_s=_RETRY_S) from error


def override(parameters: Mapping[str, Any], overrides: Mapping[str, Number]) -> dict[str, Any]:
    """Parameters of a deployment with other numbers in its config.

    `{"training.iterations": 2}` replaces `parameters["config"]["training"]["iterations"]`. Raises `APIError` if the
    config has no number at a path, or if a number would replace a switch, or a switch a number.
    """
    changed = deepcopy(dict(parameters))
    for path, value in overrides.items():
        *outer, last = path.split(".")
        place: Any = changed.get("config")
        for name in outer:
            place = place.get(name) if isinstance(place, dict) else None
        before = place.get(last) if isinstance(place, dict) else None
        if not isinstance(before, int | float) or isinstance(before, bool) is not isinstance(value, bool):
            kind = "switch" if isinstance(value, bool) else "number"
            raise invalid_request(
                f"the deployed config has no setting {path} that is a {kind}",
                param=f"overrides.{path}",
                code="invalid_value",
            )
        place[last] = value
    return changed


def _read(client: SyncPrefectClient, id: UUID) -> Job:
    """The training run with this id. Raises `APIError` 404 if the run belongs to another flow or does not exist."""
    from prefect.exceptions import ObjectNotFound

    try:
        run = client.read_flow_run(id)
        name = client.read_flow(run.flow_id).name
    except ObjectNotFound:
        name = ""
    if name not in FLOWS:
        raise APIError(404, f"no training run {id}", code="job_not_found")
    return _job(run, _deployment(client, run, name), _iterations(client, run))


def _job(run: FlowRun, deployment: str, iterations: int) -> Job:
    status: JobStatus = run.state_type.value.lower() if run.state_type is not None else "pending"  # type: ignore[assignment]
    return Job(
        id=run.id,
        deployment=deployment,
        name=run.name,
        status=status,
        message="" if run.state is None else (run.state.message or "")[:1000],
        iterations=iterations,
        created=run.created,
        started=run.start_time,
        ended=run.end_time,
    )


def _deployment(client: SyncPrefectClient, run: FlowRun, flow: str) -> str:
    from prefect.exceptions import ObjectNotFound

    if run.deployment_id is None:
        return ""
    try:
        return f"{flow}/{client.read_deployment(run.deployment_id).name}"
    except ObjectNotFound:
        return ""


def _recent(client: SyncPrefectClient, flow: str) -> Iterator[FlowRun]:
    """Every run of a flow that is due and has not ended, and the newest runs of the last day that have ended."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterExpectedStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import TERMINAL_STATES, StateType
    from prefect.client.schemas.sorting import FlowRunSort

    def runs(states: Iterable[StateType], *, after: datetime | None = None, **page: Any) -> list[FlowRun]:
        return client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=sorted(states))),
                expected_start_time=FlowRunFilterExpectedStartTime(after_=after, before_=now),
            ),
            **page,
        )

    now, unfinished = datetime.now(UTC), set(StateType) - TERMINAL_STATES
    yield from all_pages(lambda offset: runs(unfinished, sort=FlowRunSort(STABLE), offset=offset), key=attrgetter("id"))
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    yield from runs(TERMINAL_STATES, after=now - _RECENT, sort=newest, limit=_MOST_ENDED)


def _iterations(client: SyncPrefectClient, run: FlowRun) -> int:
    """Completed updates of a run."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterId,
        TaskRunFilter,
        TaskRunFilterName,
        TaskRunFilterState,
        TaskRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import TaskRunSort

    completed = TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.COMPLETED]))
    updates = all_pages(
        lambda offset: client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
            task_run_filter=TaskRunFilter(name=TaskRunFilterName(like_=UPDATE), state=completed),
            sort=TaskRunSort(STABLE),
            offset=offset,
        ),
        key=attrgetter("id"),
    )
    return sum(update.name == UPDATE or update.name.startswith(f"{UPDATE}-") for update in updates)
