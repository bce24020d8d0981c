"""Answers of Prefect's server that are longer than one of its pages."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest

from grpo_local import nights, run_checks, training_jobs
from grpo_local.checks import CheckResult
from grpo_local.prefect_pages import STABLE, all_pages, asked

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = 200  # rows that Prefect's server sends at once
MANY = 205
WORKER = "crowd@here"


def pages_of(rows: Callable[[], Sequence[int]], size: int = 20) -> Callable[[int], Sequence[int]]:
    """A server's answers: the rows at the time of each request, from the offset on."""
    return lambda offset: rows()[offset : offset + size]


@pytest.mark.parametrize("number", [0, 1, 9, 10, 11, 19, 20, 21, 38, 100])
def test_every_row_is_read_once(number: int):
    """Whatever part of a page is left at the end."""
    rows = list(range(number))
    for size in (1, 2, 9, 20):
        assert list(all_pages(pages_of(lambda: rows, size), key=int)) == rows


def test_rows_that_come_and_go_between_two_requests_hide_no_other_row():
    """Pages of 20 overlap by 2: two rows of the first page leave before the second, then five newer ones are added."""
    rows, calls = list(range(60)), 0

    def present() -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 2:
            rows[:2] = []
        if calls == 3:
            rows[:0] = range(-5, 0)
        return rows

    assert list(all_pages(pages_of(present), key=int)) == list(range(60))


class Crowd(NamedTuple):
    """A work pool with more running runs than fit on a page, and after them a lost one and a late one."""

    pool: str
    deployment: UUID
    lost: UUID
    late: UUID
    runs: int
    """Number of runs as the server counts them. It may have made some twice, if its client repeated a request."""


def _bulk(client: SyncPrefectClient, deployment: UUID, number: int) -> list[UUID]:
    """Running runs, in the server's own way to create many. Returns their ids in the order in which pages have them."""
    body, ids = {"state": {"type": "RUNNING", "name": "Running"}}, []
    for first in range(0, number, 50):
        chosen = [body] * min(50, number - first)
        made = client.request("POST", f"/deployments/{deployment}/create_flow_run/bulk", json=chosen).json()
        ids += [UUID(one["flow_run_id"]) for one in made["results"]]
    return sorted(ids, reverse=True)


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[SyncPrefectClient]:
    from prefect import get_client

    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture(scope="module")
def crowd(client: SyncPrefectClient) -> Iterator[Crowd]:
    from prefect import flow
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.states import Late

    pool = f"pool-{uuid.uuid4().hex[:8]}"
    client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    work = client.create_flow(flow(lambda: None, name="crowd"))
    deployment = client.create_deployment(work, pool, work_pool_name=pool)
    *_, late, lost = _bulk(client, deployment, MANY)
    client.update_flow_run_labels(lost, {"prefect.worker.name": WORKER})
    client.set_flow_run_state(late, Late(), force=True)
    assert len(client.read_flow_runs()) == PAGE
    counted = {"deployments": {"id": {"any_": [str(deployment)]}}}
    runs = int(client.request("POST", "/flow_runs/count", json=counted).json())
    assert runs >= MANY
    yield Crowd(pool, deployment, lost, late, runs)
    client.request("DELETE", f"/flows/{work}").raise_for_status()  # with its runs


def _checked(home: Path, monkeypatch: pytest.MonkeyPatch, pool: str) -> dict[str, CheckResult]:
    monkeypatch.setattr(run_checks, "POOLS", (pool,))
    return {check.name: check for check in run_checks.check_runs(home)}


def test_doctor_sees_a_late_run_and_a_lost_one_beyond_the_first_page(
    crowd: Crowd, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """If no silence is allowed, all runs in state Running are lost."""
    assert f"({crowd.late})" in _checked(home, monkeypatch, crowd.pool)["runs late"].detail
    monkeypatch.setattr(run_checks, "SILENCE_S", -1)
    assert _checked(home, monkeypatch, crowd.pool)["runs lost"].detail.endswith(f"and {crowd.runs - 1 - 3} more")


def test_all_runs_of_a_night_are_listed_although_they_were_planned_for_one_time(
    crowd: Crowd, server: str, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """None twice, none left out."""
    monkeypatch.setattr(nights, "FLOW", "crowd")
    with run_checks.open_api(server, home) as client:
        rows = nights.read_nights(client, 2, today=datetime.now(UTC).date())
        runs = asked(client, "/flow_runs/filter", flows={"name": {"any_": ["crowd"]}}, sort=STABLE)
        assert sorted(row.run for row in rows if row.run) == sorted(run["name"] for run in runs)
    assert len([row for row in rows if row.run]) == crowd.runs


def test_all_runs_that_go_on_are_listed_by_the_server_of_a_model(
    crowd: Crowd, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also those of the last page."""
    monkeypatch.setattr(training_jobs, "FLOWS", ("crowd",))
    jobs = asyncio.run(training_jobs.PrefectJobs(home).recent())
    assert {crowd.lost, crowd.late} < {job.id for job in jobs}
    assert len(jobs) == crowd.runs


def test_a_lost_run_beyond_the_first_page_is_recovered(crowd: Crowd, client: SyncPrefectClient):
    """Its worker lives and its process is gone."""
    from grpo_local.workers.recovery import reschedule_lost_runs

    reschedule_lost_runs(client, crowd.pool, WORKER, worker_dead=False)
    assert client.read_flow_run(crowd.lost).state_name == "Crashed"


@pytest.mark.usefixtures("server")
def test_every_update_of_a_long_run_is_counted(client: SyncPrefectClient, home: Path):
    """More iterations than fit on a page, and a stage with a similar name."""
    from prefect import flow
    from prefect.states import Running

    run = client.create_flow_run(flow(lambda: None, name="train"), state=Running()).id
    for index in range(MANY + 1):
        name = f"train-{index}" if index < MANY else "train_reward"
        task: dict[str, Any] = {"flow_run_id": str(run), "name": name, "task_key": "train", "dynamic_key": str(index)}
        task["state"] = {"type": "COMPLETED", "name": "Completed"}
        client.request("POST", "/task_runs/", json=task).raise_for_status()
    assert asyncio.run(training_jobs.PrefectJobs(home).job(run)).iterations == MANY
    client.delete_flow_run(run)


def test_more_workers_and_automations_than_fit_on_a_page(
    crowd: Crowd, client: SyncPrefectClient, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """All workers count. Automations that are beyond the page by their name are found, and none is made twice."""
    from prefect.events import AutomationCore, EventTrigger
    from prefect.events.actions import DoNothing

    from grpo_local.automations import RECOVERY, write_automations

    for index in range(MANY):
        client.send_worker_heartbeat(crowd.pool, f"worker-{index}", heartbeat_interval_seconds=60)
    trigger = EventTrigger(expect={"never"}, threshold=1)
    others = [
        client.create_automation(AutomationCore(name=f"another {index}", trigger=trigger, actions=[DoNothing()]))
        for index in range(PAGE)
    ]
    for _ in range(2):
        write_automations(client, (crowd.pool,), sender=crowd.pool)
    checks = _checked(home, monkeypatch, crowd.pool)
    assert checks[f"pool {crowd.pool}"].detail == f"{MANY} of its workers online"
    assert checks["automations"].detail == f"{len(RECOVERY)} enabled"
    ours = [one.id for name in RECOVERY for one in client.read_automations_by_name(name)]
    assert len(ours) == len(RECOVERY)
    for automation in (*others, *ours):
        client.delete_automation(automation)
