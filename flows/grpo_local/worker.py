"""Worker of process pools: Prefect's own worker, which here survives a run that comes back while its process lives.

Prefect loads this module in `prefect worker start`, by the entry point `prefect.collections` in pyproject.toml, so that
each worker of a pool of the type `process` is of this class. A run comes back when the server has declared it lost and
scheduled it again, because its process hangs, is stopped, or is just not reaped yet. If Prefect's worker was started
with `--limit`, it then ends with an error, and all its other runs end with it. Without `--limit` the run gets a second
process while the first goes on. Here the lost process is killed first, and the run is taken when the process is gone.

A process that hangs would also hold its place below `--limit` after the server has ended its run. Therefore it is
killed a minute later.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from anyio import to_thread
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.workers.process import ProcessWorker

from grpo_local.recovery import flow_run_processes, kill_flow_runs

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkerFlowRunResponse

logger = logging.getLogger("prefect.worker.process")
_GRACE = timedelta(seconds=60)
"""Time that a process has to end after its run has ended."""

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*matches existing registered type")  # this class replaces Prefect's

    class PoolWorker(ProcessWorker):
        """Worker with one process for each run."""

        type = "process"

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self._taken: set[UUID] = set()
            """Runs for which this worker has started a process. Runs that have ended are removed."""

        async def sync_with_backend(self) -> None:
            """Report to the server, and end processes that go on although their runs have ended on the server."""
            await super().sync_with_backend()
            with suppress(httpx.HTTPError, PrefectException):
                ended = {run for run in self._taken if await self._ended_long_ago(run)}
                await _kill(ended, "ended on the server")
                self._taken -= ended

        async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
            """Submit the runs that have no process here. If a run came back, its old process is killed first."""
            scheduled = {entry.flow_run.id for entry in flow_run_response} - self._submitting_flow_run_ids
            lost = await _kill(scheduled, "scheduled again")
            held = lost | (set(self._limiter.statistics().borrowers) if self._limiter is not None else set())
            taken = await super()._submit_scheduled_flow_runs(
                [entry for entry in flow_run_response if entry.flow_run.id not in held]
            )
            self._taken |= {run.id for run in taken}
            return taken

        async def _ended_long_ago(self, run: UUID) -> bool:
            try:
                state = (await self.client.read_flow_run(run)).state
            except ObjectNotFound:
                return True
            return state is not None and state.is_final() and datetime.now(UTC) - state.timestamp > _GRACE


async def _kill(runs: set[UUID], reason: str) -> set[UUID]:
    """Kill the processes of these runs. Returns the runs that had any."""
    having = await to_thread.run_sync(lambda: runs & flow_run_processes().keys()) if runs else set()
    if having:
        logger.warning("killing the processes of %s: %s", ", ".join(sorted(map(str, having))), reason)
        await to_thread.run_sync(partial(kill_flow_runs, having))
    return having
