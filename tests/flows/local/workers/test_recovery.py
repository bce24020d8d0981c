"""Recovery of lost runs, on a real server with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
import pytest

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
WORKER = "pool@here"


class Pool:
    """A work pool of a test and the runs in it."""

    def __init__(self, client: SyncPrefectClient) -> None:
        from prefect import flow
        from prefect.client.schemas.actions import WorkPoolCreate

        self.name = f"pool-{uuid.uuid4().hex[:8]}"
        self.client = client
        self.client.create_work_pool(WorkPoolCreate(name=self.name, type="process"))
        lost = self.client.create_flow(flow(lambda: None, name="lost"))
        self._deployment = self.client.create_deployment(lost, self.name, work_pool_name=self.name)

    def run(self, *states: Callable[[], object], worker: str | None = WORKER) -> UUID:
        """A run that has gone through these states."""
        made = self.client.create_flow_run_from_deployment(self._deployment)
        if worker is not None:
            self.client.update_flow_run_labels(made.id, {"prefect.worker.name": worker})
        self.go(made.id, *states)
        return made.id

    def go(self, run: UUID, *states: Callable[[], object]) -> None:
        for state in states:
            self.client.set_flow_run_state(run, state(), force=True)

    def state(self, run: UUID) -> str | None:
        return self.client.read_flow_run(run).state_name

    def reschedule(self, *, worker_dead: bool) -> list[UUID]:
        from grpo_local.workers.recovery import reschedule_lost_runs

        return reschedule_lost_runs(self.client, self.name, WORKER, worker_dead=worker_dead)


@pytest.fixture
def pool() -> Iterator[Pool]:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        yield Pool(client)


@contextmanager
def process_of(run: UUID | str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to a run."""
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(run)}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_run_without_a_process_is_crashed(pool: Pool):
    """Its state is Running, and it has no process; an automation starts it again, and nothing else does."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    for _ in range(2):
        assert pool.reschedule(worker_dead=False) == []
        assert pool.state(run) == "Crashed"


def test_a_run_with_a_process_is_left_alone_while_its_worker_lives(pool: Pool):
    """Without its worker it could not be cancelled: its process is killed, and it starts again."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    with process_of(run) as process:
        assert pool.reschedule(worker_dead=False) == []
        assert process.poll() is None
        assert pool.reschedule(worker_dead=True) == [run]
        assert process.poll() is not None
    assert pool.state(run) == "AwaitingRetry"


def test_a_process_that_cannot_be_killed_keeps_no_run_of_its_worker_from_going_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It waits for a device. The next worker takes its run when it is gone, and the other run at once."""
    from prefect.states import Pending, Running

    from grpo_local.processes import kill_all
    from grpo_local.workers import recovery

    monkeypatch.setattr(recovery, "kill_all", lambda find, wait_s: kill_all(find, wait_s=0.0))
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    hanging, other = pool.run(Pending, Running), pool.run(Pending, Running)
    with process_of(hanging) as process:
        assert sorted(pool.reschedule(worker_dead=True)) == sorted([hanging, other])
    assert f"processes [{process.pid}] were killed and did not end" in caplog.text


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_run_of_another_worker_and_one_that_has_ended_are_left_alone(pool: Pool, worker_dead: bool):
    """This worker has not lost them."""
    from prefect.states import Completed, Pending, Running

    other = pool.run(Pending, Running, worker="pool@elsewhere")
    done = pool.run(Pending, Running, Completed)
    assert pool.reschedule(worker_dead=worker_dead) == []
    assert (pool.state(other), pool.state(done)) == ("Running", "Completed")


def test_a_run_that_a_worker_is_about_to_start_is_lost_only_with_it(pool: Pool):
    """Pending, without a process yet."""
    from prefect.states import Pending

    run = pool.run(Pending)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.reschedule(worker_dead=True) == [run]


def test_a_run_that_dies_before_it_is_running_is_started_three_times(pool: Pool):
    """A missing folder, for example: Prefect does not count such an attempt, and reports each crash twice."""
    from prefect.states import Crashed, Pending

    run = pool.run(Pending, Crashed, Crashed)
    for _ in range(2):
        assert pool.reschedule(worker_dead=False) == [run]
        pool.go(run, Crashed, Pending, Crashed)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.reschedule(worker_dead=True) == []
    assert pool.state(run) == "Crashed"


def test_a_run_goes_on_however_often_its_worker_dies(pool: Pool):
    """A long run outlives any number of calls of `down` and `up`."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    for _ in range(7):
        assert pool.reschedule(worker_dead=True) == [run]
        assert pool.state(run) == "AwaitingRetry"
        pool.go(run, Pending, Running)


@pytest.mark.parametrize("end", ["Completed", "Cancelled"])
def test_a_run_that_ends_while_its_dead_worker_is_cleaned_up_does_not_start_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, end: str
):
    """Its process reports the end just before it is killed."""
    from prefect import states

    from grpo_local.workers import recovery

    run = pool.run(states.Pending, states.Running)
    monkeypatch.setattr(recovery, "kill_flow_runs", lambda runs: pool.go(run, getattr(states, end)))
    assert pool.reschedule(worker_dead=True) == []
    assert pool.state(run) == end


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_deleted_run_does_not_stop_the_recovery_of_others(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, worker_dead: bool
):
    """It is deleted on the page during the recovery."""
    from prefect.states import Pending, Running

    from grpo_local.workers import recovery

    deleted, lost = pool.run(Pending, Running), pool.run(Pending, Running)
    unfinished = recovery._unfinished

    def seen_and_deleted(*arguments: Any, worker_dead: bool) -> list[FlowRun]:
        runs = [*unfinished(*arguments, worker_dead=worker_dead)]
        pool.client.delete_flow_run(deleted)
        return runs

    monkeypatch.setattr(recovery, "_unfinished", seen_and_deleted)
    assert pool.reschedule(worker_dead=worker_dead) == ([lost] if worker_dead else [])
    assert pool.state(lost) == ("AwaitingRetry" if worker_dead else "Crashed")


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_run_without_a_worker_label_is_lost_after_a_minute(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, worker_dead: bool
):
    """Another worker took it and labels it at once; after a minute that worker must have died."""
    from prefect.states import Pending, Running

    from grpo_local.workers import recovery

    run = pool.run(Pending, worker=None)
    by_hand = pool.run(Pending, Running, worker=None)
    assert pool.reschedule(worker_dead=worker_dead) == []
    monkeypatch.setattr(recovery, "_CLAIM_S", -1.0)
    assert pool.reschedule(worker_dead=worker_dead) == [run]
    assert pool.state(by_hand) == "Running"


def test_an_invalid_run_id_is_ignored():
    """Another program sets Prefect's variable to a word."""
    from grpo_local.workers.recovery import flow_run_processes

    run = uuid.uuid4()
    with process_of("mine"), process_of(run):
        assert run in flow_run_processes()


def test_a_run_that_was_being_cancelled_is_cancelled(pool: Pool):
    """Its dead worker does not restart it."""
    from prefect.states import Cancelling, Pending, Running

    run = pool.run(Pending, Running, Cancelling)
    with process_of(run) as process:
        assert pool.reschedule(worker_dead=True) == []
        assert process.poll() is not None
    assert pool.state(run) == "Cancelled"
