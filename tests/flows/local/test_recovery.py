"""Lost runs, on a real server; the processes that they had or have are real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

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
        from flows.local.recovery import reschedule_lost_runs

        return reschedule_lost_runs(self.name, WORKER, worker_dead=worker_dead)


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


def test_a_run_without_a_process_starts_again(pool: Pool):
    """It is said to be running, and nothing of it lives."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    assert pool.reschedule(worker_dead=False) == [run]
    assert pool.state(run) == "AwaitingRetry"


def test_a_run_whose_process_lives_is_left_alone_as_long_as_its_worker_does(pool: Pool):
    """With the worker gone nobody would cancel it: its process is ended, and it starts again."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    with process_of(run) as process:
        assert pool.reschedule(worker_dead=False) == []
        assert process.poll() is None
        assert pool.reschedule(worker_dead=True) == [run]
        assert process.poll() is not None
    assert pool.state(run) == "AwaitingRetry"


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_run_of_another_worker_and_one_that_has_ended_are_left_alone(pool: Pool, worker_dead: bool):
    """They are not this worker's to lose."""
    from prefect.states import Completed, Pending, Running

    other = pool.run(Pending, Running, worker="pool@elsewhere")
    done = pool.run(Pending, Running, Completed)
    assert pool.reschedule(worker_dead=worker_dead) == []
    assert (pool.state(other), pool.state(done)) == ("Running", "Completed")


def test_a_run_that_a_worker_is_about_to_start_is_lost_only_with_it(pool: Pool):
    """Pending, and no process yet."""
    from prefect.states import Pending

    run = pool.run(Pending)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.reschedule(worker_dead=True) == [run]


def test_a_run_that_crashes_again_and_again_is_started_three_times(pool: Pool):
    """Then it stays crashed, for somebody to look at."""
    from prefect.states import Crashed, Pending, Running

    run = pool.run(Pending, Running, Crashed)
    for _ in range(2):
        assert pool.reschedule(worker_dead=False) == [run]
        pool.go(run, Pending, Running, Crashed)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.reschedule(worker_dead=True) == []
    assert pool.state(run) == "Crashed"


def test_a_run_that_dies_before_it_is_running_is_started_three_times(pool: Pool):
    """A missing folder, say: Prefect counts no such attempt, and each crash is reported once more a moment later."""
    from prefect.states import Crashed, Pending

    run = pool.run(Pending, Crashed, Crashed)
    for _ in range(2):
        assert pool.reschedule(worker_dead=False) == [run]
        pool.go(run, Crashed, Pending, Crashed)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.reschedule(worker_dead=True) == []
    assert pool.state(run) == "Crashed"


def test_a_run_that_loses_its_process_again_and_again_ends_as_crashed(pool: Pool):
    """It does not stay Running for ever with nothing behind it."""
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    for _ in range(2):
        assert pool.reschedule(worker_dead=False) == [run]
        pool.go(run, Pending, Running)
    assert pool.reschedule(worker_dead=False) == []
    assert pool.state(run) == "Crashed"


def test_workers_that_go_are_no_crashes_of_their_runs(pool: Pool):
    """A long run outlives any number of calls of `down` and `up`, and may still crash."""
    from prefect.states import Crashed, Pending, Running

    run = pool.run(Pending, Running)
    for _ in range(3):
        assert pool.reschedule(worker_dead=True) == [run]
        pool.go(run, Pending, Running)
    pool.go(run, Crashed)
    assert pool.reschedule(worker_dead=False) == [run]


@pytest.mark.parametrize("end", ["Completed", "Cancelled"])
def test_a_run_that_ends_while_its_worker_is_mourned_does_not_start_again(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, end: str
):
    """Its process reports the end just before it is killed."""
    from prefect import states

    from flows.local import recovery

    run = pool.run(states.Pending, states.Running)
    monkeypatch.setattr(recovery, "kill_flow_runs", lambda runs: pool.go(run, getattr(states, end)))
    assert pool.reschedule(worker_dead=True) == []
    assert pool.state(run) == end


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_run_that_was_deleted_meanwhile_keeps_no_other_from_coming_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, worker_dead: bool
):
    """Somebody tidies up on the page while the keeper looks."""
    from prefect.states import Pending, Running

    from flows.local import recovery

    deleted, lost = pool.run(Pending, Running), pool.run(Pending, Running)
    found = recovery._unfinished

    def seen_and_deleted(*arguments: Any) -> list[FlowRun]:
        runs = found(*arguments)
        pool.client.delete_flow_run(deleted)
        return runs

    monkeypatch.setattr(recovery, "_unfinished", seen_and_deleted)
    assert pool.reschedule(worker_dead=worker_dead) == [lost]


@pytest.mark.parametrize("worker_dead", [True, False])
def test_a_run_without_a_name_is_lost_when_it_has_waited_for_one_too_long(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, worker_dead: bool
):
    """Another worker has taken it, and says so in a moment; after a minute that worker has died."""
    from prefect.states import Pending, Running

    from flows.local import recovery

    run = pool.run(Pending, worker=None)
    by_hand = pool.run(Pending, Running, worker=None)
    assert pool.reschedule(worker_dead=worker_dead) == []
    monkeypatch.setattr(recovery, "_CLAIM_S", -1.0)
    assert pool.reschedule(worker_dead=worker_dead) == [run]
    assert pool.state(by_hand) == "Running"


def test_an_id_that_is_none_is_passed_over():
    """A program of somebody's that sets Prefect's variable to a word."""
    from flows.local.recovery import flow_run_processes

    run = uuid.uuid4()
    with process_of("mine"), process_of(run):
        assert run in flow_run_processes()


def test_a_run_that_was_being_cancelled_is_cancelled(pool: Pool):
    """It does not come back because its worker died on the way."""
    from prefect.states import Cancelling, Pending, Running

    run = pool.run(Pending, Running, Cancelling)
    with process_of(run) as process:
        assert pool.reschedule(worker_dead=True) == []
        assert process.poll() is not None
    assert pool.state(run) == "Cancelled"
