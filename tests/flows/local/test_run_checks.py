"""What `grpo doctor` says of the runs and pools of a real Prefect server."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from grpo_local import run_checks
from grpo_local.checks import CheckResult
from grpo_local.managed_process import ManagedProcess
from grpo_local.servers import prefect_service
from tests import waiting

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    from prefect import get_client

    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def pool(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one pool that is checked."""
    from prefect.client.schemas.actions import WorkPoolCreate

    name = f"pool-{uuid.uuid4().hex[:8]}"
    client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    monkeypatch.setattr(run_checks, "POOLS", (name,))
    return name


def checked(home: Path) -> dict[str, CheckResult]:
    return {check.name: check for check in run_checks.check_runs(home)}


def test_a_pool_has_workers_and_automations(client: SyncPrefectClient, pool: str, home: Path):
    """Each fault with the command that ends it."""
    from grpo_local.automations import RECOVERY, write_automations

    for one in client.read_automations():  # left by other tests on this server
        client.delete_automation(one.id)
    before = checked(home)
    assert (before[f"pool {pool}"].state, before["automations"].state) == ("warning", "warning")
    assert f"prefect worker start --pool {pool}" in before[f"pool {pool}"].remedy
    assert before["automations"].remedy.startswith("Call `grpo deploy`")
    write_automations(client, (pool,), sender=pool)
    client.send_worker_heartbeat(work_pool_name=pool, worker_name="one", heartbeat_interval_seconds=30)
    after = checked(home)
    assert (after[f"pool {pool}"].state, after["automations"].state) == ("ok", "ok")
    automations = {one.name: one.id for one in client.read_automations()}
    client.pause_automation(automations[RECOVERY[0]])
    assert RECOVERY[0] in checked(home)["automations"].detail
    for name in RECOVERY:
        client.delete_automation(automations[name])


def test_runs_that_stand_still_are_named(
    client: SyncPrefectClient, pool: str, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """A lost one, one that did not begin, one that was not ended and a late one; a finished one is not among them."""
    from prefect import flow
    from prefect.states import Cancelling, Completed, Late, Pending, Running

    still = client.create_flow(flow(lambda: None, name="still"))
    deployment = client.create_deployment(still, pool, work_pool_name=pool)
    kinds = {"lost": (Running,), "not begun": (Pending,), "not cancelled": (Running, Cancelling), "late": (Late,)}
    runs = {}
    for kind, states in (*kinds.items(), ("done", (Running, Completed))):
        runs[kind] = client.create_flow_run_from_deployment(deployment, name=kind).id
        for state in states:
            client.set_flow_run_state(runs[kind], state(), force=True)
    young = checked(home)
    assert [kind for kind in kinds if young[f"runs {kind}"].state != "ok"] == ["late"]
    for limit in ("SILENCE_S", "IMAGE_S", "CANCELLING_S"):
        monkeypatch.setattr(run_checks, limit, -1)
    old = checked(home)
    for kind in kinds:
        check = old[f"runs {kind}"]
        assert check.state == ("warning" if kind == "late" else "problem")
        assert check.detail.startswith(f"{kind} ({runs[kind]})")
        assert check.remedy
    assert str(runs["done"]) not in str(old)


def test_a_run_that_sends_heartbeats_is_not_lost(
    client: SyncPrefectClient, pool: str, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both have been Running for longer than the limit of five seconds. The last heartbeat of one is an hour old."""
    from prefect import flow
    from prefect.events import emit_event
    from prefect.states import Running

    still = client.create_flow(flow(lambda: None, name="heard"))
    deployment = client.create_deployment(still, pool, work_pool_name=pool)
    runs = {name: client.create_flow_run_from_deployment(deployment, name=name).id for name in ("heard", "silent")}

    def beat(name: str, **more: Any) -> None:
        emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{runs[name]}"}, **more)

    for run in runs.values():
        client.set_flow_run_state(run, Running(), force=True)
    beat("silent", occurred=datetime.now(UTC) - timedelta(hours=1))
    monkeypatch.setattr(run_checks, "SILENCE_S", 5)

    def only_the_silent_one_is_lost() -> bool:
        beat("heard")
        lost = checked(home)["runs lost"].detail
        return "silent (" in lost and "heard (" not in lost

    waiting.until("the loss of the silent run", only_the_silent_one_is_lost, patience_s=60.0)


@pytest.mark.parametrize(("ahead_s", "state"), [(0, "ok"), (600, "problem"), (-600, "problem")])
def test_a_clock_that_differs_is_seen(pool: str, home: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int, state: str):
    """Ten minutes off, either way."""
    monkeypatch.setattr(run_checks, "time", SimpleNamespace(time=lambda: time.time() - ahead_s))
    clock = checked(home)["clock"]
    assert clock.state == state
    assert ("behind" in clock.detail) == (ahead_s < 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list their locks")
def test_a_run_whose_command_was_killed_is_named(
    client: SyncPrefectClient, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """`grpo train` has neither a worker nor a heartbeat. This process lives, and was there before its run began."""
    from prefect import flow
    from prefect.states import Completed, Running

    assert psutil.Process() in (prefect_service(home).users() or [])
    runs = {
        name: client.create_flow_run(flow(lambda: None, name="direct"), name=name, state=state())
        for name, state in (("running", Running), ("done", Completed))
    }
    assert "running" not in checked(home)["runs of commands"].detail
    monkeypatch.setattr(ManagedProcess, "users", lambda _: [])  # as after a restart of the machine
    monkeypatch.setattr(run_checks, "_BEGUN_S", -1.0)
    check = checked(home)["runs of commands"]
    assert check.state == "warning"
    assert f"({runs['running'].id})" in check.detail
    assert str(runs["done"].id) not in check.detail
    assert check.remedy
    for run in runs.values():
        client.delete_flow_run(run.id)
