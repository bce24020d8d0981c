"""Checks of a Prefect server's runs, pools and clock: runs that wait or stand still, and automations that notice it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from grpo_local.checks import PREFECT, CheckResult, State
from grpo_local.deployments import POOLS
from grpo_local.login import CLIENT, login, login_file
from grpo_local.prefect_pages import STABLE, asked
from grpo_local.servers import prefect_service
from grpo_local.settings import CANCELLING_S, IMAGE_S, SILENCE_S
from grpo_local.stack import supervisor_service

_CLOCK_S = 30.0
"""Difference of two clocks that matters, because leases and heartbeats are compared with the server's clock."""
_SHOWN = 3
_BEGUN_S = 1.0
"""Difference between the clocks of the kernel's and Prefect's times."""


def check_runs(home: Path) -> Iterator[CheckResult]:
    """Check the runs and pools of the server that the environment names, or of this home's, if one answers."""
    url = os.environ.get(PREFECT)
    if url is None:
        with suppress(ValueError):  # the check of the port has reported that it is not a number
            url = prefect_service(home).address()
    if url is None:
        return
    with open_api(url, home) as client:
        try:
            yield _check_clock(client)
            yield from _check_pools(client)
            yield from _check_waiting(client)
            if url == prefect_service(home).address():
                yield from _check_direct(client, home)
        except (httpx.HTTPError, ValueError):
            return  # the check of the server has reported it


def open_api(url: str, home: Path) -> httpx.Client:
    """Client of a Prefect server, with the login of the environment or of this home's server.

    Prefect's own client is not used, because it takes seconds to import.
    """
    given = os.environ.get(CLIENT)
    if given is None and os.environ.get(PREFECT) != url and login_file(home, "prefect").exists():
        given = login(home, "prefect")
    basic = None if given is None else httpx.BasicAuth(*given.partition(":")[::2])
    return httpx.Client(base_url=url, auth=basic, timeout=10)


def _check_clock(client: httpx.Client) -> CheckResult:
    before = time.time()
    date = client.get("/health").headers.get("date")
    if date is None:
        return _result("clock", "absent", "the server's answer has no date")
    apart = parsedate_to_datetime(date).timestamp() - (before + time.time()) / 2
    if abs(apart) <= _CLOCK_S:
        return _result("clock", "ok", f"{abs(apart):.0f} s from the clock of Prefect's server")
    detail = f"the clock of Prefect's server is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this one"
    return _result("clock", "problem", detail, "Let a time service set both clocks, for example chrony")


def _check_pools(client: httpx.Client) -> Iterator[CheckResult]:
    """Check the deployed pools: the number of workers that are online, and the automations that watch the pools."""
    deployed = [*asked(client, "/work_pools/filter", work_pools={"name": {"any_": list(POOLS)}})]
    for pool in deployed:
        name = pool["name"]
        workers = asked(client, f"/work_pools/{name}/workers/filter", workers={"status": {"any_": ["ONLINE"]}})
        online = sum(1 for _ in workers)
        if pool["is_paused"]:
            yield _result(f"pool {name}", "warning", "is paused", f"Call `prefect work-pool resume {name}`")
        elif not online:
            remedy = f"Call `grpo up` on this machine, or `prefect worker start --pool {name}` on another"
            yield _result(f"pool {name}", "warning", "has no worker that is online", remedy)
        else:
            yield _result(f"pool {name}", "ok", f"{online} of its workers online")
    if deployed:
        from grpo_local.automations import RECOVERY  # Prefect takes seconds to import

        named = asked(client, "/automations/filter", automations={"name": {"any_": list(RECOVERY)}})
        known = {automation["name"]: automation["enabled"] for automation in named}
        missing = [name for name in RECOVERY if not known.get(name)]
        detail = f"{', '.join(missing)}: missing or paused" if missing else f"{len(RECOVERY)} enabled"
        remedy = (
            "Call `grpo deploy`, or enable them on Prefect's page, because without them a lost run stays Running"
            if missing
            else ""
        )
        yield _result("automations", "warning" if missing else "ok", detail, remedy)


def _check_waiting(client: httpx.Client) -> Iterator[CheckResult]:
    """Check for runs that have stood still for longer than an automation allows.

    Runs that are planned for later are not asked for, because schedules make up to a hundred of them per deployment.
    """
    open_ones = {"operator": "or_", "type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}, "name": {"any_": ["Late"]}}
    runs = asked(
        client,
        "/flow_runs/filter",
        flow_runs={"state": open_ones},
        work_pools={"name": {"any_": list(POOLS)}},
        sort=STABLE,
    )
    heard = _heard(client)
    kinds: dict[str, list[str]] = {"lost": [], "not begun": [], "not cancelled": [], "late": []}
    for run in runs:
        since = _seconds(run["state"]["timestamp"])
        if run["state_type"] == "RUNNING" and since > SILENCE_S and run["id"] not in heard:
            kinds["lost"].append(_named(run))
        elif run["state_type"] == "PENDING" and since > IMAGE_S:
            kinds["not begun"].append(_named(run))
        elif run["state_type"] == "CANCELLING" and since > CANCELLING_S:
            kinds["not cancelled"].append(_named(run))
        elif run["state_name"] == "Late":
            kinds["late"].append(_named(run))
    remedies = {
        "lost": "Retry it on Prefect's page, so that it continues after its last stage, or remove it: "
        "`prefect flow-run delete ID`",
        "not begun": "Look at the log of its worker. Then retry it on Prefect's page",
        "not cancelled": "Call `prefect flow-run delete ID`",
        "late": "Start a worker of its pool. If one is online, the run waits for an earlier run in its queue",
    }
    for kind, names in kinds.items():
        state: State = "ok" if not names else "warning" if kind == "late" else "problem"
        yield _result(f"runs {kind}", state, _shown(names) or "none", remedies[kind] if names else "")


def _check_direct(client: httpx.Client, home: Path) -> Iterator[CheckResult]:
    """Check for runs of commands such as `grpo train` that have ended without a word, e.g. by SIGKILL.

    They have no worker and no heartbeat. Each such command is a user of this home's server for as long as it lives, so
    that a run is lost if it began before all present users.
    """
    users = prefect_service(home).users()
    if users is None:
        return
    supervisor = supervisor_service(home, {}).process()
    begun = [user.create_time() for user in users if user != supervisor and user.is_running()]
    no_parents = {"deployment_id": {"is_null_": True}, "parent_task_run_id": {"is_null_": True}}
    running = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}, **no_parents}
    runs = asked(client, "/flow_runs/filter", flow_runs=running, sort=STABLE)
    oldest = min(begun, default=time.time())
    lost = [_named(run) for run in runs if time.time() - _seconds(run["created"]) < oldest - _BEGUN_S]
    remedy = (
        "Start the same command again, which continues after the last stage. Then call `prefect flow-run delete ID`"
    )
    yield _result("runs of commands", "warning" if lost else "ok", _shown(lost) or "none", remedy if lost else "")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _heard(client: httpx.Client) -> frozenset[str]:
    """Ids of the runs that have sent a heartbeat within the time after which a run is lost."""
    since = datetime.now(UTC) - timedelta(seconds=SILENCE_S)
    recent = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "occurred": {"since": since.isoformat()}}
    answer = client.post("/events/count-by/resource", json={"filter": recent}).raise_for_status()
    return frozenset(count["value"].removeprefix("prefect.flow-run.") for count in answer.json())


def _named(run: Mapping[str, Any]) -> str:
    return f"{run['name']} ({run['id']}), {run['state_name']} for {_seconds(run['state']['timestamp']) / 60:.0f} min"


def _seconds(time_of: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(time_of)).total_seconds()


def _result(name: str, state: State, detail: str, remedy: str = "") -> CheckResult:
    return CheckResult(area="runs", name=name, state=state, detail=detail, remedy=remedy)
