"""Remote stages: sent to a deployment on another work pool, e.g. the pool of the GPU workers, and waited for.

The inputs travel as JSON, and the sources of the user's modules as an artifact in the store. The result comes back as
an artifact as well, and the message of the flow run's last state is its address. A `GRPOError`, and a fault that a
retry can fix, come back as type and text. The flow at the other end is `grpo_flows.stage.run_stage`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import TaskRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import CancelledRun, ObjectNotFound, PrefectException
from prefect.states import Cancelling

from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import ComputeSettings, GpuStages
from grpo.config.training import TrainingSettings
from grpo.errors import ConfigError
from grpo.identity.code import source_digest
from grpo.identity.code_transfer import module_digests, write_code_artifact
from grpo_tasks.execution import server_clock
from grpo_tasks.execution.remote_messages import encode, read_error, read_result_artifact
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import Stage

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=StageResult)

_POLL_S = 0.5
_WAITING_S = 60.0
"""Interval at which the log warns that no worker has taken a stage."""
_LOOK_S = 15.0
"""Interval at which the store is searched for the result of a stage that runs elsewhere."""
_ENDING_S = 60.0
"""Time that a stage has to set its state after its result is there. Later its machine or its server counts as lost."""
_AWAY_S = 300.0
"""Longest time without an answer of Prefect's server while a stage runs elsewhere."""


class RemoteStages:
    """The stages that `compute.gpu_stages` names, sent to its deployment. When the block ends, open ones are cancelled.

    If the run is killed, the stages that it has sent go on to their end. Their results are there when the run is
    started again.
    """

    def __init__(self, settings: ComputeSettings) -> None:
        self._settings = settings.gpu_stages
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Start without sending anything."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let every thread that waits for a stage give up."""
        self._over.set()

    def sends(self, stage: Stage[..., Any]) -> bool:
        """True if the deployment runs the stage."""
        return self._settings is not None and stage.name in self._settings.stages

    def task(self, stage: Stage[..., R]) -> Task[..., R]:
        """The stage's own task, or one that sends its inputs to the deployment, with the same identity and retries."""
        if not self.sends(stage):
            return stage.task

        def relay(inputs: dict[str, Any]) -> R:
            return stage.cached(inputs, lambda given: self._send(stage, given), alone=False)  # the worker locks

        return stage.task_of(relay)

    def _send(self, stage: Stage[..., R], inputs: dict[str, Any]) -> R:
        assert self._settings is not None
        deployment = self._settings.deployment
        store = ArtifactStore(inputs["store"]).uri  # makes a relative path an address that is the same everywhere
        limit_s = _no_progress_s(self._settings, inputs)
        flow_run = _start(deployment, stage, {**inputs, "store": store}, no_progress_s=limit_s)
        try:
            ended = self._wait(flow_run, deployment, lambda: stage.find(inputs) if stage.cache else None)
        except BaseException:
            _cancel(flow_run.id)
            raise
        if isinstance(ended, State):
            return _outcome(stage, flow_run, ended, store)
        logger.warning("flow run %s is cancelled, because it has stored its result but stays Running", flow_run.name)
        _cancel(flow_run.id)
        return ended

    def _wait(self, flow_run: FlowRun, deployment: str, find: Callable[[], R | None]) -> State[Any] | R:
        """Final state of the run, or the result that it has left in the store without setting its state.

        Raises `ConnectionError` if Prefect's server does not answer for longer than `_AWAY_S`.
        """
        answered = warned = looked = time.monotonic()
        seen: float | None = None
        """Time at which the result was seen first."""
        with get_client(sync_client=True) as client:
            while True:
                try:
                    state = client.read_flow_run(flow_run.id).state
                except (httpx.HTTPError, ValueError) as error:  # ValueError: e.g. a proxy answers with a page
                    if time.monotonic() - answered > _AWAY_S:
                        raise ConnectionError(
                            f"Prefect's server has not answered for {_AWAY_S:g} s: {error}"
                        ) from error
                    state = None
                if state is not None:
                    answered = time.monotonic()
                    if state.is_final():
                        return state
                    if state.is_running() and answered - looked > _LOOK_S:
                        looked = answered
                        with suppress(OSError):  # the store is away as well
                            result = find()
                            seen = None if result is None else seen or answered
                            if result is not None and seen is not None and answered - seen > _ENDING_S:
                                return result
                    if state.is_scheduled() and answered - warned > _WAITING_S:
                        warned = answered
                        logger.warning(
                            "stage %s waits for a worker. Start one for the work pool of deployment %s",
                            flow_run.name,
                            deployment,
                        )
                if self._over.wait(_POLL_S):
                    raise CancelledRun(f"stage {flow_run.name} is cancelled, because the run that sent it has ended")


def _no_progress_s(settings: GpuStages, inputs: dict[str, Any]) -> float:
    """Bound of a stage. An update in several processes reports nothing until it ends, and has a timeout of its own."""
    training = inputs.get("settings")
    if isinstance(training, TrainingSettings) and training.workers > 1:
        return settings.no_progress_s + training.update_timeout_s
    return settings.no_progress_s


def _start(deployment: str, stage: Stage[..., R], inputs: dict[str, Any], *, no_progress_s: float) -> FlowRun:
    """Create a run of the deployment. If an attempt of a task run calls this again, it gets the same run."""
    context = TaskRunContext.get()
    attempt = f"{context.task_run.id}-{context.task_run.run_count}" if context else None
    code = write_code_artifact(ArtifactStore(inputs["store"]), inputs)
    parameters = {
        "stage": stage.name,
        "inputs": encode(stage, inputs),
        "sources": source_digest(),
        "code": None if code is None else code.model_dump(),
        "modules": module_digests(inputs),
        "no_progress_s": no_progress_s,
    }
    try:
        created = run_deployment(
            deployment,
            parameters=parameters,
            scheduled_time=_now(),
            flow_run_name=stage.name,
            timeout=0,
            idempotency_key=attempt,
        )
        return cast(FlowRun, created)
    except ObjectNotFound as error:
        raise ConfigError(
            f"compute.gpu_stages.deployment: deployment {deployment} does not exist. Run `grpo deploy`, or leave "
            "compute.gpu_stages out"
        ) from error
    except httpx.TransportError as error:
        raise ConnectionError(f"Prefect's server cannot be reached: {error}") from error


def _now() -> datetime:
    """Time on Prefect's server, because a run is due by its clock."""
    sent, date = datetime.now(UTC), None
    with get_client(sync_client=True) as client, suppress(httpx.HTTPStatusError):  # a proxy may answer only the API
        date = client.request("GET", "/health").headers.get("date")
    received = datetime.now(UTC)
    return received + (server_clock.ahead(date, sent, received) or timedelta(0))


def _outcome(stage: Stage[..., R], flow_run: FlowRun, state: State[Any], store: str) -> R:
    """The result of a run that has ended, or its error."""
    message = state.message or ""
    if state.is_completed():
        return read_result_artifact(stage, message, store)
    if state.is_crashed():
        raise ConnectionError(f"the remote run of stage {flow_run.name} was lost: {message}")
    if state.is_cancelled():
        raise CancelledRun(f"the remote run of stage {flow_run.name} was cancelled: {message}")
    raise read_error(message) or RuntimeError(f"the remote run of stage {flow_run.name} failed: {message}")


def _cancel(flow_run: UUID) -> None:
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Cancelling(message="the run that sent it has ended"))
    except (httpx.HTTPError, PrefectException, ValueError) as error:
        logger.warning("flow run %s could not be cancelled: %s", flow_run, error)
