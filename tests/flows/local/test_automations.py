"""Automations of a real Prefect server: lost runs go on, a bounded number of times, and somebody is told."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from grpo.errors import ConfigError
from tests import waiting

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
until = partial(waiting.until, patience_s=300.0)


class Receiver:
    """A webhook, and what it was sent."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """Of runs."""
        self.pools: list[str] = []
        texts, pools, runs = self.texts, self.pools, " is "

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = json.loads(self.rfile.read(int(self.headers["content-length"])))["text"]
                (texts if runs in text else pools).append(text)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Pool:
    """A work pool with the automations, whose times are short."""

    def __init__(self, client: SyncPrefectClient) -> None:
        from prefect import flow
        from prefect.client.schemas.actions import WorkPoolCreate

        from grpo_local.automations import write_automations

        self.client, self.name = client, f"pool-{uuid.uuid4().hex[:8]}"
        self.write = partial(write_automations, client, (self.name,), sender=self.name)
        client.create_work_pool(WorkPoolCreate(name=self.name, type="process"))
        flow_id = client.create_flow(flow(lambda: None, name=f"lost-{self.name}"))
        self._deployment = client.create_deployment(flow_id, self.name, work_pool_name=self.name)
        self.write()

    def run(self, *states: Callable[[], object]) -> UUID:
        """A run that has gone through these states."""
        made = self.client.create_flow_run_from_deployment(self._deployment)
        self.go(made.id, *states)
        return made.id

    def go(self, run: UUID, *states: Callable[[], object]) -> None:
        """Let the run go through these states."""
        for state in states:
            self.client.set_flow_run_state(run, state(), force=True)

    def emit(self, name: str, run: UUID, *, labels: Mapping[str, str] = {}, **more: Any) -> None:
        """Emit an event of the run, as one of this pool."""
        from prefect.events import emit_event

        related = [
            {
                "prefect.resource.id": f"prefect.work-pool.{self.name}",
                "prefect.resource.role": "work-pool",
                "prefect.resource.name": self.name,
            }
        ]
        emit_event(
            f"prefect.flow-run.{name}",
            {"prefect.resource.id": f"prefect.flow-run.{run}", **labels},
            related=related,
            **more,
        )

    def state(self, run: UUID) -> str | None:
        return self.client.read_flow_run(run).state_name

    def history(self, run: UUID) -> list[str]:
        return [state.name for state in self.client.read_flow_run_states(run)]

    def went_on(self, run: UUID, *after: str) -> bool:
        """True if the run was started again after these states, whatever is repeated.

        An automation that waits for silence may react twice on a busy machine: Prefect lets the event of its own
        reaction fire it once more if the event arrives before the first reaction is committed.
        """
        states = self.history(run)
        return states[: len(after)] == list(after) and states[-1] == "AwaitingRetry"

    def ours(self) -> dict[str, Any]:
        return {one.name: one for one in self.client.read_automations() if one.name.startswith("grpo: ")}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> Iterator[Pool]:
    from prefect import get_client

    for name in ("SILENCE_S", "PENDING_S", "CANCELLING_S"):
        monkeypatch.setattr(f"grpo_local.automations.{name}", 20)  # a busy machine may send no heartbeat for 10 s
    monkeypatch.setenv("GRPO_NOTIFY_URL", receiver.url)
    with get_client(sync_client=True) as client:
        made = Pool(client)
        yield made
        for one in made.ours().values():
            client.delete_automation(one.id)


def test_a_run_without_a_heartbeat_goes_on_and_a_cancelled_one_ends(pool: Pool):
    """In whatever state its worker was lost."""
    from prefect.states import Cancelling, Completed, Pending, Running

    running, cancelled = pool.run(Pending, Running), pool.run(Pending, Running, Cancelling)
    pending, done = pool.run(Pending), pool.run(Pending, Running)
    pool.go(done, Completed)
    until("a restart", lambda: pool.went_on(running, "Scheduled", "Pending", "Running", "Crashed"))
    until("a restart", lambda: pool.went_on(pending, "Scheduled", "Pending", "AwaitingRetry"))
    until("the end", lambda: pool.state(cancelled) == "Cancelled")
    assert pool.state(done) == "Completed"


def test_heartbeats_keep_a_run(pool: Pool):
    """Of the same kind as those that a flow run sends; also of a machine whose clock is ten minutes late, and of a run
    of which the event that it is Running was lost."""
    from prefect.states import Pending, Running

    quiet, heard, late = (pool.run(Pending, Running) for _ in range(3))
    quiet_before, heard_before = (pool.run(Pending) for _ in range(2))

    def beat() -> bool:
        pool.emit("heartbeat", heard)
        pool.emit("heartbeat", heard_before)
        pool.emit("heartbeat", late, occurred=datetime.now(UTC) - timedelta(minutes=10))
        return pool.state(quiet) == pool.state(quiet_before) == "AwaitingRetry"

    until("the end of the quiet ones", beat)
    assert pool.state(heard) == "Running"
    assert pool.state(heard_before) == "Pending"
    assert pool.state(late) == "Running"


def test_a_run_that_completed_is_not_started_again(pool: Pool):
    """The supervisor (AwaitingRetry), a worker (Pending) and a process (Running) learn its present state, and so does
    the automation to which the event of an earlier crash comes late. By hand it can be forced."""
    from prefect.client.schemas.responses import SetStateStatus
    from prefect.states import AwaitingRetry, Completed, Crashed, Pending, Running

    run, crashed = pool.run(Pending, Running, Completed), pool.run(Pending, Running)
    for state in (AwaitingRetry(), Pending(), Running()):
        answer = pool.client.set_flow_run_state(run, state)
        assert answer.status == SetStateStatus.REJECT
        assert answer.state is not None
        assert answer.state.is_completed()
    pool.emit("Crashed", run, labels={"prefect.run-count": "1"})
    pool.go(crashed, Crashed)
    until("a restart", lambda: pool.state(crashed) == "AwaitingRetry")
    assert pool.history(run) == ["Scheduled", "Pending", "Running", "Completed"]
    pool.go(run, AwaitingRetry)
    assert pool.state(run) == "AwaitingRetry"


def test_a_crash_is_reacted_to_although_the_event_before_it_is_unknown(pool: Pool):
    """As it is to a server that was started again between both: within seconds, not after Prefect's 15 minutes."""
    from prefect.events import Event
    from prefect.states import Pending, Running

    run = pool.run(Pending, Running)
    unknown = Event(event="prefect.flow-run.Running", resource={"prefect.resource.id": f"prefect.flow-run.{run}"})
    pool.emit("Crashed", run, labels={"prefect.run-count": "1"}, follows=unknown)

    def beat() -> bool:
        pool.emit("heartbeat", run)  # so that its silence is not the reason
        return pool.state(run) == "AwaitingRetry"

    until("a restart", beat)
    assert pool.history(run) == ["Scheduled", "Pending", "Running", "AwaitingRetry"]


def test_a_crash_whose_event_was_lost_is_found_in_the_database(pool: Pool, receiver: Receiver):
    """As it is after a server was killed before its automation reacted: a paused one does not react. A run that was
    started as often as the bound says stays crashed."""
    from prefect.states import Crashed, Failed, Pending, Running

    from grpo_local.automations import STARTS

    automation = pool.ours()["grpo: crashed runs go on"]
    pool.client.pause_automation(automation.id)
    exhausted, lost = pool.run(*[Pending, Running, Crashed] * STARTS), pool.run(Pending, Running, Crashed)
    pool.run(Pending, Running, partial(Failed, message="after them"))
    until("the events before this one", lambda: any("after them" in text for text in receiver.texts))
    pool.client.resume_automation(automation.id)
    until("a restart", lambda: pool.state(lost) == "AwaitingRetry")
    assert pool.state(exhausted) == "Crashed"
    assert pool.history(lost).count("AwaitingRetry") == 1


def test_a_run_of_which_every_event_was_lost_is_waited_for(pool: Pool, receiver: Receiver):
    """Its state came while the automations did not listen, as while the database is away, and it sends no heartbeats.
    A run that sends heartbeats is left as it is."""
    from prefect.states import Cancelling, Failed, Pending, Running

    from grpo_local.automations import RECOVERY

    automations = [one.id for name, one in pool.ours().items() if name in RECOVERY]
    for automation in automations:
        pool.client.pause_automation(automation)
    running, heard = pool.run(Pending, Running), pool.run(Pending, Running)
    pending = pool.run(Pending, partial(Pending, name="Submitting"))  # as a worker does it before it starts a process
    cancelled = pool.run(Pending, Running, Cancelling)
    pool.run(Pending, Running, partial(Failed, message="after them"))
    until("the events before this one", lambda: any("after them" in text for text in receiver.texts))
    for automation in automations:
        pool.client.resume_automation(automation)

    def beat() -> bool:
        pool.emit("heartbeat", heard)
        return (
            pool.went_on(running, "Scheduled", "Pending", "Running", "Crashed")
            and pool.state(pending) == "AwaitingRetry"
            and pool.state(cancelled) == "Cancelled"
        )

    until("the end of the silent ones", beat)
    assert pool.state(heard) == "Running"


def test_a_run_that_crashes_is_started_a_bounded_number_of_times_and_told(pool: Pool, receiver: Receiver):
    """The crash after the last start is the one that somebody is told of."""
    from prefect.states import Crashed, Pending, Running

    from grpo_local.automations import STARTS

    run = pool.run()
    for start in range(STARTS):
        assert not receiver.texts
        pool.go(run, Pending, Running, partial(Crashed, message=f"crash {start + 1}"))
        if start + 1 < STARTS:
            until("a restart", lambda: pool.state(run) == "AwaitingRetry")
    until("a word", lambda: receiver.texts)
    assert pool.state(run) == "Crashed"
    assert f"is Crashed: crash {STARTS}" in receiver.texts[0]


def test_failed_and_late_runs_are_told_whatever_their_message(pool: Pool, receiver: Receiver):
    """One text of JSON each, with the run's name and the message."""
    from prefect.states import Failed, Late, Pending, Running

    message = 'KeyError: "stock"\nin C:\\shop {{ flow_run.id }} </script>'
    pool.run(Pending, Running, partial(Failed, message=message))
    late = pool.run(Late)
    until("both", lambda: len({text.partition(" is ")[0] for text in receiver.texts}) == 2)
    failed, waiting_one = ([text for text in receiver.texts if state in text] for state in (" is Failed", " is Late"))
    assert f"is Failed: {message} " in failed[0]
    assert f"lost-{pool.name} " in failed[0]
    assert str(late) in waiting_one[0]


def test_a_pool_without_a_worker_is_told(pool: Pool, receiver: Receiver):
    """By its name, when its last worker is gone."""
    pool.client.send_worker_heartbeat(work_pool_name=pool.name, worker_name="one", heartbeat_interval_seconds=1)
    until("a word", lambda: receiver.pools)
    assert pool.name in receiver.pools[0]


def test_writing_them_again_changes_nothing_and_keeps_a_pause(pool: Pool):
    """As `grpo deploy` and `grpo up` do each time."""
    before = pool.ours()
    paused = before["grpo: crashed runs go on"]
    pool.client.pause_automation(paused.id)
    pool.write()
    after = pool.ours()
    assert {name: one.id for name, one in after.items()} == {name: one.id for name, one in before.items()}
    assert not after[paused.name].enabled
    assert all(one.enabled for name, one in after.items() if name != paused.name)


def test_an_address_that_is_none_is_refused(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """Without the address, which may be a secret."""
    monkeypatch.setenv("GRPO_NOTIFY_URL", "hooks.slack.com/services/T0/secret")
    with pytest.raises(ConfigError, match="GRPO_NOTIFY_URL") as refused:
        pool.write()
    assert "secret" not in str(refused.value)
