"""Workers of process pools, on a real server: a run that comes back while the worker still has its process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID, uuid4

import anyio
import httpx
import psutil
import pytest

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
_SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def pool() -> str:
    """A process pool."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    name = f"held-{uuid4().hex[:8]}"
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    return name


def _scheduled_run(pool: str) -> UUID:
    from prefect import flow, get_client

    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(flow(lambda: None, name=f"comes-back-{pool}"))
        deployment = client.create_deployment(flow_id, pool, work_pool_name=pool)
        return client.create_flow_run_from_deployment(deployment).id


@contextmanager
def _hanging(run: UUID) -> Iterator[subprocess.Popen[bytes]]:
    """A stopped process of the run, as one that hangs."""
    process = subprocess.Popen([sys.executable, "-c", _SLEEP], env={"PREFECT__FLOW_RUN_ID": str(run)})
    try:
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def _worker(pool: str) -> AsyncIterator[Any]:
    """What `prefect worker start --pool POOL --limit 1` starts, without its loops."""
    from prefect.plugins import load_prefect_collections
    from prefect.utilities.dispatch import lookup_type
    from prefect.workers.base import BaseWorker

    load_prefect_collections()
    async with lookup_type(BaseWorker, "process")(work_pool_name=pool, limit=1) as worker:
        await worker.sync_with_backend()
        yield worker


def test_a_run_that_comes_back_ends_its_process_and_not_the_worker(pool: str):
    """A process that hangs is killed, and the run is taken when the worker has let go of it."""
    run = _scheduled_run(pool)

    async def poll(process: subprocess.Popen[bytes]) -> list[UUID]:
        async with _worker(pool) as worker:
            worker.limiter.acquire_on_behalf_of_nowait(run)  # as it does when it starts the process
            assert await worker.get_and_submit_flow_runs() == []
            assert process.wait(timeout=300) == -signal.SIGKILL
            worker.limiter.release_on_behalf_of(run)  # as it does when the process has ended
            return [taken.id for taken in await worker.get_and_submit_flow_runs()]

    with _hanging(run) as process:
        assert anyio.run(poll, process) == [run]


def test_a_process_that_hangs_frees_its_place_when_its_run_has_ended(pool: str, monkeypatch: pytest.MonkeyPatch):
    """The server has set the run to Crashed, as the automation does for one without a heartbeat."""
    from prefect import get_client
    from prefect.states import Crashed

    import grpo_local.workers.worker as module

    monkeypatch.setattr(module, "_GRACE", timedelta(0))
    run = _scheduled_run(pool)

    async def sync(process: subprocess.Popen[bytes]) -> None:
        async with _worker(pool) as worker:
            worker._taken.add(run)  # as it does when it starts the process
            await worker.sync_with_backend()
            assert process.poll() is None, "its run has not ended"
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(run, Crashed(message="no heartbeat"), force=True)
            await worker.sync_with_backend()
            assert process.wait(timeout=300) == -signal.SIGKILL

    with _hanging(run) as process:
        anyio.run(sync, process)


def test_a_worker_may_take_a_run_while_it_asks_for_the_others(pool: str, monkeypatch: pytest.MonkeyPatch):
    """Both loops of a worker change its runs; an error in one of them would end the worker and all its runs."""
    late = UUID(int=1)

    async def sync() -> set[UUID]:
        async with _worker(pool) as worker:
            read = worker.client.read_flow_run

            async def read_while_another_is_taken(run: UUID) -> Any:
                worker._taken.add(late)  # as the other loop does when it starts a process
                return await read(run)

            monkeypatch.setattr(worker.client, "read_flow_run", read_while_another_is_taken)
            worker._taken |= {scheduled, gone}
            await worker.sync_with_backend()
            return worker._taken

    scheduled, gone = _scheduled_run(pool), UUID(int=2)
    assert anyio.run(sync) == {scheduled, late}, "a run that the server does not know any more is removed"


def _refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/api")
    return httpx.HTTPStatusError(f"{status}", request=request, response=httpx.Response(status, request=request))


_AWAY = (
    httpx.ConnectError("connection refused"),
    httpx.RemoteProtocolError("the server has disconnected"),
    _refusal(500),
    json.JSONDecodeError("the page of a proxy", "<html>", 0),
)


def _failing(call: Any, *errors: Exception) -> Any:
    """The call of a client, after calls that raise these errors."""
    waiting = list(errors)

    async def fail_first(*arguments: Any, **settings: Any) -> Any:
        if waiting:
            raise waiting.pop(0)
        return await call(*arguments, **settings)

    return fail_first


def test_a_worker_outlives_an_outage_of_the_server(
    pool: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Prefect's own loops would end the worker and all its runs after 12 passes that fail, or after one HTML page."""
    run = _scheduled_run(pool)

    async def poll() -> list[UUID]:
        async with _worker(pool) as worker:
            began = worker._last_polled_time
            for client, name in (
                (worker._worker_channel, "sync"),
                (worker.client, "get_scheduled_flow_runs_for_work_pool"),
            ):
                monkeypatch.setattr(client, name, _failing(getattr(client, name), *_AWAY * 4))
            for _ in range(16):
                await worker.sync_with_backend()
                assert await worker.get_and_submit_flow_runs() == []
            assert worker._last_polled_time > began, "a probe finds that the worker lives"
            return [taken.id for taken in await worker.get_and_submit_flow_runs()]

    with caplog.at_level("WARNING", logger="prefect.worker.process"):
        assert anyio.run(poll) == [run]
    lines = [line for line in caplog.messages if "this worker" in line]
    assert len(lines) == 2, "one for the outage and one for its end"
    assert "does not answer this worker: ConnectError: connection refused" in lines[0]


def test_a_login_that_is_refused_still_ends_the_worker(pool: str, monkeypatch: pytest.MonkeyPatch):
    """No later try would succeed."""

    async def poll() -> None:
        async with _worker(pool) as worker:
            name = "get_scheduled_flow_runs_for_work_pool"
            monkeypatch.setattr(worker.client, name, _failing(None, _refusal(401)))
            with pytest.raises(httpx.HTTPStatusError):
                await worker.get_and_submit_flow_runs()

    anyio.run(poll)


@pytest.mark.parametrize("error", _AWAY, ids=lambda error: type(error).__name__)
def test_a_run_that_cannot_be_started_now_ends_no_other(pool: str, monkeypatch: pytest.MonkeyPatch, error: Exception):
    """The server fails when the worker asks for its deployment. The next look takes the run again."""
    run = _scheduled_run(pool)

    async def poll() -> list[UUID]:
        async with _worker(pool) as worker:
            monkeypatch.setattr(worker.client, "read_deployment", _failing(worker.client.read_deployment, error))
            assert [taken.id for taken in await worker.get_and_submit_flow_runs()] == [run]
            while worker._submitting_flow_run_ids:
                await anyio.sleep(0.01)
            return [taken.id for taken in await worker.get_and_submit_flow_runs()]

    assert anyio.run(poll) == [run]


def test_a_run_without_a_deployment_keeps_no_place(pool: str, monkeypatch: pytest.MonkeyPatch):
    """It was deleted while the run went on, which then crashed and came back. The worker may have a single place."""
    from prefect.exceptions import ObjectNotFound

    run = _scheduled_run(pool)

    async def poll() -> None:
        async with _worker(pool) as worker:
            gone = ObjectNotFound(http_exc=_refusal(404))
            monkeypatch.setattr(worker.client, "read_deployment", _failing(None, gone))
            assert [taken.id for taken in await worker.get_and_submit_flow_runs()] == [run]
            assert worker.limiter.borrowed_tokens == 1
            with anyio.fail_after(240):
                while worker.limiter.borrowed_tokens:
                    await anyio.sleep(0.01)
            assert (await worker.client.read_flow_run(run)).state.is_cancelled()

    anyio.run(poll)


def test_a_run_that_cannot_be_cancelled_now_ends_no_other(pool: str, monkeypatch: pytest.MonkeyPatch):
    """The server fails when the worker asks for the run that is to be cancelled."""

    async def cancel() -> bool:
        async with _worker(pool) as worker:
            monkeypatch.setattr(worker.client, "read_flow_run", _failing(None, _AWAY[0]))
            worker._runs_task_group.start_soon(worker._cancel_run, UUID(int=1))
            await anyio.sleep(0.01)
            return not worker._runs_task_group.cancel_scope.cancel_called

    assert anyio.run(cancel)


def test_a_process_that_cannot_be_killed_ends_no_other_run(
    pool: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It waits for a device. Its own run is taken when it is gone, and the worker goes on with the others."""
    import grpo_local.workers.worker as module

    monkeypatch.setattr(module, "_KILLED_S", 0.0)
    run = _scheduled_run(pool)

    async def poll(process: subprocess.Popen[bytes]) -> list[UUID]:
        async with _worker(pool) as worker:
            with monkeypatch.context() as patch:
                patch.setattr(psutil.Process, "kill", lambda self: None)
                assert await worker.get_and_submit_flow_runs() == []
            process.kill()
            process.wait()
            return [taken.id for taken in await worker.get_and_submit_flow_runs()]

    with _hanging(run) as process, caplog.at_level("WARNING", logger="prefect.worker.process"):
        assert anyio.run(poll, process) == [run]
    assert f"processes [{process.pid}] were killed and did not end" in caplog.text


class _TenMinutesBehind(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - timedelta(minutes=10)


def test_a_worker_with_a_wrong_clock_takes_what_is_due_on_the_server(
    pool: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its clock goes ten minutes back: without a comparison it would take the run ten minutes later."""
    from prefect.types import _datetime

    import grpo_local.workers.worker as module

    right = _datetime.now

    async def poll() -> list[UUID]:
        async with _worker(pool) as worker:
            monkeypatch.setattr(module, "datetime", _TenMinutesBehind)
            monkeypatch.setattr(_datetime, "now", lambda tz="UTC": right(tz) - timedelta(minutes=10))
            assert await worker.get_and_submit_flow_runs() == []
            await worker.sync_with_backend()
            first = [taken.id for taken in await worker.get_and_submit_flow_runs()]
            for run in first:
                worker.limiter.release_on_behalf_of(run)
            monkeypatch.undo()
            await worker.sync_with_backend()
            assert worker._ahead == timedelta(0)
            return first

    run = _scheduled_run(pool)
    with caplog.at_level("WARNING", logger="prefect.worker.process"):
        assert anyio.run(poll) == [run]
    seconds = re.search(r"the clock of Prefect's server is (\d+) s ahead of this one", caplog.text)
    assert seconds is not None
    assert 590 <= int(seconds[1]) <= 601  # the header has whole seconds, and may be some seconds old on a busy machine
