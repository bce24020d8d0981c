"""Cells of the table: a run, a fault at a moment of it, and a verdict that is computed from what is left.

The first run is undisturbed. A cell's run has a part of the bucket and a model of its own. Results of the stages before
its moment are copied from the undisturbed run, so that these stages are cache hits and a cell takes a minute less; the
stage of the moment and those after it are computed. Several cells may share a run, with one fault after the other.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import UUID

import boto3
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelled

from grpo.storage.locks import scratch_path
from grpo_local.automations import STARTS
from grpo_local.login import CLIENT
from tests.benchmarks.page import commit
from tests.chaos.faults import FAULTS, Fault, Moment, Preparation
from tests.chaos.machine import Machine
from tests.chaos.stack import BUCKET, Stack
from tests.doubles import short_run
from tests.e2e.served import basic

BAR_S = 600.0
"""Time from the end of a fault within which the run has ended."""
_START_S = 300.0
_LONGEST_NAME = 60
AGAIN = "COMPLETED, later "
"""Begin of the state of a run that did not stay Completed."""
UNKNOWN = "unknown"
_ENDS = (StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED)
_RUN = "train/quickstart"
_POLL_S = 1.0
_PROCESS_S = 60.0
"""Time that a process has to end after its run has ended."""
UNDISTURBED = "undisturbed"
"""Name of the run without a fault."""
_STAGES = (
    *("ingest", "validate", "split", "load_base", "rollout", "score", "train", "evaluate", "gate"),
    "register",
)
"""Stages of a run, in order."""


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault at a moment."""

    fault: Fault
    moment: Moment

    @classmethod
    def named(cls, name: str) -> Self:
        """The one of this name, `fault@moment`."""
        fault, _, moment = name.partition("@")
        if fault not in FAULTS or moment not in FAULTS[fault].moments:
            raise SystemExit(f"no cell {name}; there are {', '.join(all_cells())}")
        return cls(fault=FAULTS[fault], moment=moment)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        return f"{self.fault.name}@{self.moment}"

    def machine(self, stack: Stack) -> Machine:
        """The machine of which a request begins the fault."""
        return stack.gpu if self.fault.on_gpu else stack.cpu

    def play(self, stack: Stack, run: UUID, store: str, *, after: int, longest_s: float) -> bool:
        """Wait until the run asks its store for the stage, and let the fault happen; False if it has ended before.

        Requests before the number `after` do not count.
        """
        reached = self.machine(stack).store.wait_for(
            f"/{store}/results/{self.moment}-",
            after=after,
            patience_s=_START_S,
            alive=lambda: not _has_ended(_read(run)),
        )
        if reached:
            self.fault.play(stack, str(run), longest_s=longest_s)
        return reached


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A run with a fault at a moment, or with several, one after the other.

    After a fault that ends the stage, the next one at the same moment begins when the stage is asked for again. After
    any other it begins at once, because the stage still suffers from the one before.
    """

    name: str
    strikes: tuple[Strike, ...]

    @classmethod
    def named(cls, name: str) -> Self:
        """The cell `fault@moment`, or `fault@moment+fault@moment` with several in one run, in the order of moments."""
        return cls(name=name, strikes=tuple(Strike.named(part) for part in name.split("+")))

    def preparations(self) -> list[Preparation]:
        """Return the preparations that the faults need before the run begins."""
        return [strike.fault.prepare for strike in self.strikes if strike.fault.prepare is not None]

    def sent(self) -> list[str]:
        """Stages that are sent to `gpu`: those in which a fault hits it, or the update."""
        return sorted({strike.moment for strike in self.strikes if strike.fault.on_gpu}) or ["train"]


def all_cells() -> list[str]:
    """Names of all cells, by fault."""
    return [f"{fault.name}@{moment}" for fault in FAULTS.values() for moment in fault.moments]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a run, and of the run after it."""

    cell: str
    state: str
    message: str
    starts: int
    """Number of times that the run was started."""
    seconds: dict[str, float]
    """From the end of each fault that was played to the end of the run; of an undisturbed run, from its begin."""
    policy: str
    """Hash of the policy of the only version, or what there is instead."""
    versions: int
    promotions: int
    leftovers: tuple[str, ...]
    next_state: str
    notified: bool
    """A text about this run has come to the webhook."""
    commit: str
    """Commit at which it was played."""

    def faults(self, undisturbed: str) -> list[str]:
        """Return how the run misses the bar. `undisturbed` is the policy of the run without a fault."""
        if self.state.startswith(AGAIN):
            return ["was Completed, and then started again"]
        ended, longest = self.state == "COMPLETED", max(self.seconds.values())
        checks = {
            f"is {self.state} after {longest:.0f} s": ended or self.state in ("FAILED", "CRASHED"),
            f"{longest:.0f} s": longest <= BAR_S,
            "no notification": ended or self.notified,
            "no sentence": ended or (bool(self.message) and "\n" not in self.message.strip()),
            f"policy {self.policy[:12] or 'none'}": not ended or self.policy == undisturbed,
            f"{self.versions} versions": self.versions == 1 or (not ended and self.versions == 0),
            f"{self.promotions} promotions": self.promotions == 1 or (not ended and self.promotions == 0),
            f"left: {', '.join(self.leftovers[:3])}": not self.leftovers,
            f"the next run: {self.next_state}": self.next_state in ("", "COMPLETED"),
        }
        return [text for text, holds in checks.items() if not holds]

    def document(self) -> dict[str, Any]:
        return asdict(self)


def play(stack: Stack, cell: Cell | None, *, longest_s: float = math.inf) -> tuple[UUID, Outcome]:
    """Run the cell, or without one an undisturbed run; a run that did not complete is followed by one of its config.

    No fault lasts longer than `longest_s`.
    """
    name = UNDISTURBED if cell is None else _model(cell.name)
    texts = len(stack.receiver.texts)
    with ExitStack() as prepared:
        if cell is not None:
            for prepare in cell.preparations():
                prepared.enter_context(prepare(stack))
            _copy_results(stack, cell.strikes[0].moment, name)
        config = _config(stack, name, ["train"] if cell is None else cell.sent())
        run, ends = _start(config), {name: time.monotonic()}
        strikes = cell.strikes if cell is not None else ()
        for before, strike in zip((None, *strikes), strikes, strict=False):
            again = before is not None and before.moment == strike.moment and before.fault.ends_stage
            after = len(strike.machine(stack).store.requests) if again else 0
            if strike.play(stack, run, name, after=after, longest_s=longest_s):
                ends = {**(ends if name not in ends else {}), strike.name: time.monotonic()}
        ended = _wait(run, BAR_S + 60)
        ended_at = time.monotonic()
    state = ended.state
    completed = ended.state_type == StateType.COMPLETED
    next_state = "" if completed else _name(_wait(_start(config), BAR_S))
    policies, promotions = _registered(name)
    return run, Outcome(
        cell=name if cell is None else cell.name,
        state=_name(ended),
        message=(state.message or "") if state is not None else "",
        starts=ended.run_count,
        seconds={fault: round(ended_at - end, 1) for fault, end in ends.items()},
        policy=", ".join(sorted(policies)),
        versions=len(policies),
        promotions=promotions,
        leftovers=tuple(_leftovers(stack, run, name)),
        next_state=next_state,
        notified=any(str(run) in text or f" {ended.name} " in text for text in stack.receiver.texts[texts:]),
        commit=commit(),
    )


def _model(cell: str) -> str:
    """Name of the run's config, its model and its part of the bucket, at most as long as a config allows."""
    name = re.sub("[@+]", "-", cell)
    return name if len(name) <= _LONGEST_NAME else f"{name[:40]}-{hashlib.sha256(cell.encode()).hexdigest()[:8]}"


def state_now(run: UUID) -> str:
    """State of a run that has ended long ago. UNKNOWN if the server does not answer."""
    now = _read(run)
    return UNKNOWN if now is None else _name(now)


def _name(run: FlowRun) -> str:
    return str(run.state_type.value if run.state_type else None)


def _config(stack: Stack, name: str, sent: list[str]) -> dict[str, Any]:
    """A run of seconds that sends these stages to `gpu`; its model is promoted whatever it learns."""
    return short_run(
        stack.folder,
        name=name,
        store=f"s3://{BUCKET}/{name}",
        training={"iterations": 1},
        gates=[{"kind": "improvement", "margin": -1.0}],
        registry={"model_name": name},
        compute={"gpu_stages": {"deployment": "stage/gpu", "stages": sent}},
    )


def _copy_results(stack: Stack, moment: Moment, name: str) -> None:
    """Copy the artifacts of the undisturbed run into a cell's part of the bucket, with the results before a moment."""
    before = _STAGES[: _STAGES.index(moment)]
    bucket = boto3.resource("s3", endpoint_url=stack.bucket_url).Bucket(BUCKET)
    for item in bucket.objects.filter(Prefix=f"{UNDISTURBED}/"):
        relative = item.key.removeprefix(f"{UNDISTURBED}/")
        folder, _, rest = relative.partition("/")
        if (folder == "results" and rest.partition("-")[0] in before) or (before and folder not in ("results", "kept")):
            bucket.copy({"Bucket": BUCKET, "Key": item.key}, f"{name}/{relative}")


def _start(config: dict[str, Any]) -> UUID:
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(_RUN)
        return client.create_flow_run_from_deployment(deployment.id, parameters={"config": config}).id


def _read(run: UUID) -> FlowRun | None:
    """The run; None while Prefect's server or its database is away."""
    url, login = os.environ["PREFECT_API_URL"], basic(os.environ[CLIENT])
    with suppress(httpx.HTTPError):
        answer = httpx.get(f"{url}/flow_runs/{run}", auth=login, timeout=30)
        return FlowRun.model_validate(answer.json()) if answer.status_code == httpx.codes.OK else None
    return None


def _has_ended(run: FlowRun | None) -> bool:
    """True in a state that nothing changes any more."""
    if run is None:
        return False
    return run.state_type in _ENDS or (run.state_type == StateType.CRASHED and run.run_count >= STARTS)


def _wait(run: UUID, patience_s: float) -> FlowRun:
    """The run when it has ended, or when the time is over; then it is cancelled, so that the next cell can begin."""
    deadline, last = time.monotonic() + patience_s, None
    while not _has_ended(last) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        last = _read(run) or last
    assert last is not None, "Prefect's server does not answer"
    if not _has_ended(last):
        with get_client(sync_client=True) as client:
            for flow_run in (*_children(run), last):
                client.set_flow_run_state(flow_run.id, Cancelled(message="the cell is over"), force=True)
    return last


def _children(run: UUID) -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        parent = FlowRunFilterParentFlowRunId(any_=[run])
        return client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent))


def _registered(model: str) -> tuple[list[str], int]:
    """Policies of the versions of a model, and the number of its promotions."""
    from mlflow.exceptions import MlflowException

    from grpo.registry import Registry

    registry = Registry(os.environ["MLFLOW_TRACKING_URI"])
    try:
        versions = registry.client.search_model_versions(f"name='{model}'")
    except MlflowException:
        versions = []
    policies = [str(version.tags.get("policy")) for version in versions]
    return policies, len(registry.promotions(model).history()) if versions else 0


def _leftovers(stack: Stack, run: UUID, store: str) -> Iterator[str]:
    """Yield what a run has left behind: staged files, uploads, running stages, processes and slots."""
    for machine in stack.machines:
        for folder in machine.staging_folders():
            with scratch_path(folder):
                pass  # it removes the paths of processes that have ended
        yield from (f"{machine.pool}: {path}" for path in machine.leftovers())
        deadline = time.monotonic() + _PROCESS_S
        while machine.flow_run() is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if (process := machine.flow_run()) is not None:
            yield f"{machine.pool}: process {process.pid} of a flow run"
    client = boto3.client("s3", endpoint_url=stack.bucket_url)
    uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{store}/").get("Uploads", [])
    yield from (f"unfinished upload of {upload['Key']}" for upload in uploads)
    listed = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{store}/checkpoint/")
    keys = [item["Key"] for page in listed for item in page.get("Contents", [])]
    whole = {key.rpartition("/")[0] for key in keys if key.endswith("/manifest.json")}
    yield from sorted(f"{folder} without a manifest" for folder in {key.rpartition("/")[0] for key in keys} - whole)
    for child in _children(run):
        if child.state_type not in (*_ENDS, StateType.CRASHED):
            yield f"stage {child.name} is {child.state_name}"
    with get_client(sync_client=True) as prefect:
        for limit in prefect.read_global_concurrency_limits(limit=100, offset=0):
            if limit.active_slots:
                yield f"{limit.active_slots} slots of {limit.name}"
