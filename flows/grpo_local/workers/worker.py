"""Worker of process pools: Prefect's own worker, which here survives a run that comes back while its process lives.

Prefect loads this module in `prefect worker start`, by the entry point `prefect.collections` in pyproject.toml, so that
each worker of a pool of the type `process` is of this class. A run comes back when the server has declared it lost and
scheduled it again, because its process hangs, is stopped, or is just not reaped yet. If Prefect's worker was started
with `--limit`, it then ends with an error, and all its other runs end with it. Without `--limit` the run gets a second
process while the first goes on. Here the lost process is killed first, and the run is taken when the process is gone.

A process that hangs would also hold its place below `--limit` after the server has ended its run. Therefore it is
killed a minute later.

Runs are due by the clock of Prefect's server. If the clock of a machine is ten minutes behind, Prefect's worker takes
each run ten minutes late. Here the worker compares the clocks, and asks for the runs that are due on the server.

If Prefect's server fails twelve times in a row, Prefect's worker ends with all its runs, which is after 45 s if it asks
every second. It also ends if the server fails while it starts or cancels one run. Runs themselves wait eight minutes
for the server. Here the worker waits for as long as the server is away.

The process of a remote stage is forked from one that has imported its packages (`grpo_local.workers.fork_servers`).
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from anyio import TASK_STATUS_IGNORED, to_thread
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.runner._flow_run_executor import FlowRunExecutorContext
from prefect.settings import get_current_settings
from prefect.types import _datetime
from prefect.utilities.processutils import sanitize_subprocess_env
from prefect.workers.process import ProcessWorker, ProcessWorkerResult

from grpo.storage.error_lines import one_line
from grpo_local.workers.fork_servers import Forkable, ForkServers, ForkStarter, forkable, idle_minutes
from grpo_local.workers.recovery import flow_run_processes, kill_flow_runs
from grpo_tasks.execution import server_clock

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from prefect.client.schemas.objects import FlowRun, State, WorkerFlowRunResponse
    from prefect.runner._process_manager import ProcessHandle
    from prefect.workers.process import ProcessJobConfiguration

logger = logging.getLogger("prefect.worker.process")
_GRACE = timedelta(seconds=60)
"""Time that a process has to end after its run has ended."""
_KILLED_S = 5.0
"""Time that a killed process has to end before the worker goes on with other runs."""
_NO_ANSWER = (httpx.HTTPError, json.JSONDecodeError)
"""Errors of a request that Prefect's server did not answer, or that a proxy has answered with a page."""

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*matches existing registered type")  # this class replaces Prefect's

    class PoolWorker(ProcessWorker):
        """Worker with one process for each run."""

        type = "process"

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self._taken: set[UUID] = set()
            """Runs for which this worker has started a process. Runs that have ended are removed."""
            self._fork_servers = ForkServers(idle_minutes=idle_minutes())
            self._ahead = timedelta(0)
            """Time by which the server's clock is ahead of the clock of this machine."""
            self._is_away = False
            """True after a pass in which the server did not answer."""
            self._proposed: set[UUID] = set()
            """Runs that are being started and have a deployment."""

        async def __aexit__(self, *error: Any) -> None:
            """Wait for the runs, and end the fork servers."""
            try:
                await super().__aexit__(*error)
            finally:
                await self._fork_servers.close()

        async def run(
            self,
            flow_run: FlowRun,
            configuration: ProcessJobConfiguration,
            task_status: TaskStatus[int] | None = None,
        ) -> ProcessWorkerResult:
            """Run a flow run in a process that is forked if it is a remote stage, and otherwise started afresh."""
            deployment = await self._forkable(flow_run, configuration)
            if deployment is None:
                return await super().run(flow_run, configuration, task_status)
            async with FlowRunExecutorContext() as context:
                starter = ForkStarter(
                    servers=self._fork_servers,
                    deployment=deployment,
                    environment=sanitize_subprocess_env(
                        {**get_current_settings().to_environment_variables(exclude_unset=True), **configuration.env}
                    ),
                    control_channel=context.control_channel,
                )
                executor = context.create_executor(flow_run, starter, hook_runner=_NoHooks(), propose_submitting=False)
                status: Any = TASK_STATUS_IGNORED if task_status is None else _Started(task_status)
                execution = await executor.submit(task_status=status)
            if execution is None or execution.status_code is None:
                raise RuntimeError(f"the process of flow run {flow_run.id} could not be forked")
            return ProcessWorkerResult(status_code=execution.status_code, identifier=str(execution.handle.pid))

        async def _forkable(self, flow_run: FlowRun, configuration: ProcessJobConfiguration) -> Forkable | None:
            """The deployment of a run that may be forked. None if the run prepares its process in another way."""
            prepared = configuration._command_configured or configuration.working_dir or not configuration.stream_output
            installs = "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES" in configuration.env
            if not self._fork_servers.enabled or prepared or installs or flow_run.deployment_id is None:
                return None
            return forkable(await self.client.read_deployment(flow_run.deployment_id))

        async def sync_with_backend(self) -> None:
            """Report to the server, and end processes that go on although their runs have ended on the server."""
            with self._waiting_for_server():
                await super().sync_with_backend()
            await self._compare_clocks()
            with suppress(*_NO_ANSWER, PrefectException):
                ended = {run for run in tuple(self._taken) if await self._ended_long_ago(run)}
                await _kill(ended, "have ended on the server")
                self._taken -= ended

        async def get_and_submit_flow_runs(self) -> list[FlowRun]:
            """Take the runs that are due. None is taken while the server does not answer."""
            if not self._has_successfully_synced:
                return await super().get_and_submit_flow_runs()  # it does not ask the server yet
            with self._waiting_for_server():
                return await super().get_and_submit_flow_runs()
            self._last_polled_time = _datetime.now("UTC")  # a probe would otherwise end the worker with its runs
            return []

        @contextmanager
        def _waiting_for_server(self) -> Iterator[None]:
            """Log that the server does not answer, and end the block. Answers below 500, e.g. 401, stay errors."""
            try:
                yield
            except (httpx.TransportError, httpx.HTTPStatusError, json.JSONDecodeError) as error:
                if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
                    raise
                if not self._is_away:
                    logger.warning(
                        "Prefect's server does not answer this worker: %s. Runs that have begun go on, and others "
                        "wait until it answers",
                        one_line(error),
                    )
                self._is_away = True
            else:
                if self._is_away:
                    logger.warning("Prefect's server answers this worker again")
                self._is_away = False

        async def _propose_pending_state(self, flow_run: FlowRun) -> bool:
            """Note that the run is started."""
            self._proposed.add(flow_run.id)
            return await super()._propose_pending_state(flow_run)

        async def _submit_run(self, flow_run: FlowRun) -> None:
            """Start a run. If the server does not answer, it stays scheduled, and the other runs go on.

            If its deployment was deleted, it is cancelled. Prefect's worker would keep its place below `--limit`, so
            that it takes no run any more.
            """
            try:
                await super()._submit_run(flow_run)
            except _NO_ANSWER as error:
                logger.warning(
                    "flow run %s is not started now, because Prefect's server did not answer: %s. It is taken again "
                    "while it is scheduled",
                    *(flow_run.id, one_line(error)),
                )
                self._release_limit_slot(flow_run.id)
                self._submitting_flow_run_ids.discard(flow_run.id)
                if self._cancelling_observer is not None:
                    self._cancelling_observer.remove_in_flight_flow_run_id(flow_run.id)
            else:
                if flow_run.id not in self._proposed:
                    self._release_limit_slot(flow_run.id)
            finally:
                self._proposed.discard(flow_run.id)

        async def _cancel_run(self, flow_run_id: UUID) -> None:
            """Cancel a run. If the server does not answer, it stays Cancelling, and the other runs go on."""
            try:
                await super()._cancel_run(flow_run_id)
            except _NO_ANSWER as error:
                logger.warning(
                    "flow run %s is not cancelled now, because Prefect's server did not answer: %s. An automation of "
                    "the server ends it if it stays Cancelling",
                    *(flow_run_id, one_line(error)),
                )

        async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
            """Submit the runs that have no process here. If a run came back, its old process is killed first."""
            scheduled = {entry.flow_run.id for entry in flow_run_response} - self._submitting_flow_run_ids
            lost = await _kill(scheduled, "are scheduled again")
            held = lost | (set(self._limiter.statistics().borrowers) if self._limiter is not None else set())
            taken = await super()._submit_scheduled_flow_runs(
                [entry for entry in flow_run_response if entry.flow_run.id not in held]
            )
            self._taken |= {run.id for run in taken}
            return taken

        async def _compare_clocks(self) -> None:
            sent = datetime.now(UTC)
            with suppress(*_NO_ANSWER, PrefectException):
                answer = await self.client.request("GET", "/health")
                ahead = server_clock.ahead(answer.headers.get("date"), sent, datetime.now(UTC))
                if ahead is None or abs(ahead - self._ahead) <= server_clock.APART:
                    return
                if ahead:
                    logger.warning(
                        "the clock of Prefect's server is %.0f s %s this one. Runs start by the server's clock. "
                        "Let a time service set both clocks, for example chrony",
                        *(abs(ahead.total_seconds()), "ahead of" if ahead > timedelta(0) else "behind"),
                    )
                self._prefetch_seconds += (ahead - self._ahead).total_seconds()  # what Prefect adds to its own clock
                self._ahead = ahead

        async def _ended_long_ago(self, run: UUID) -> bool:
            try:
                state = (await self.client.read_flow_run(run)).state
            except ObjectNotFound:
                return True
            return (
                state is not None and state.is_final() and (datetime.now(UTC) + self._ahead - state.timestamp > _GRACE)
            )


class _NoHooks:
    """Hooks of the flow of a stage, which has none. Looking for them would import it into the worker."""

    async def run_cancellation_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        """Nothing to run."""

    async def run_crashed_hooks(self, flow_run: FlowRun, state: State[Any]) -> None:
        """Nothing to run."""


class _Started:
    """Status of a task that passes the id of a run's process on to the worker."""

    def __init__(self, worker: TaskStatus[int]) -> None:
        self._worker = worker

    def started(self, handle: ProcessHandle) -> None:
        """Called when the process runs."""
        assert handle.pid is not None
        self._worker.started(handle.pid)


async def _kill(runs: set[UUID], reason: str) -> set[UUID]:
    """Kill the processes of these runs. Returns the runs that had any, which may not have ended yet."""
    having = await to_thread.run_sync(lambda: runs & flow_run_processes().keys()) if runs else set()
    if having:
        logger.warning("killing the processes of flow runs %s, which %s", ", ".join(sorted(map(str, having))), reason)
        try:
            await to_thread.run_sync(partial(kill_flow_runs, having, wait_s=_KILLED_S))
        except TimeoutError as error:  # e.g. they wait for a device or a network disk
            logger.warning("%s. Their flow runs are not taken before they have", error)
    return having
