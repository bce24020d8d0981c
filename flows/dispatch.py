"""Sends stages to another work pool and waits for them."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx
from prefect import Task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import TaskRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import CancelledRun, ObjectNotFound, PrefectException
from prefect.states import Cancelling

from flows.stage import encode, read_error, read_result
from grpo.artifacts import ArtifactStore
from grpo.config.pipeline import ComputeSettings
from grpo.errors import ConfigError
from grpo.identity.code import source_digest
from tasks.results import StageResult
from tasks.stage import relayed

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=StageResult)

_POLL_S = 2.0
_WAITING_S = 60.0
"""After which the log says that no worker has taken a stage, and again."""
_AWAY_S = 300.0
"""How long Prefect's server may be away while a stage runs elsewhere."""


class Dispatch:
    """Where the stages of a run are computed; what is still running elsewhere when the run breaks off is cancelled.

    What a run that was killed has sent goes on to its end: its result is there when the run is started again.
    """

    def __init__(self, settings: ComputeSettings) -> None:
        self._settings = settings.gpu_stages
        self._over = threading.Event()

    def __enter__(self) -> Self:
        """Nothing is sent yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let every thread that waits for a stage give it up."""
        self._over.set()

    def place(self, stage: Task[..., R]) -> Task[..., R]:
        """The stage itself, or the one that sends its inputs to the deployment: the same cache identity and retries."""
        if self._settings is None or stage.name not in self._settings.stages:
            return stage
        deployment = self._settings.deployment

        def send(inputs: dict[str, Any]) -> R:
            store = ArtifactStore(inputs["store"]).uri  # of a relative path, the address that is the same everywhere
            flow_run = _start(deployment, stage, {**inputs, "store": store})
            try:
                state = self._end(flow_run, deployment)
            except BaseException:
                _cancel(flow_run.id)
                raise
            return _outcome(stage, flow_run, state, store)

        return relayed(stage, send)

    def _end(self, flow_run: FlowRun, deployment: str) -> State[Any]:
        """Wait until the run has ended. Raises `ConnectionError` when Prefect's server is away for long."""
        answered = told = time.monotonic()
        with get_client(sync_client=True) as client:
            while True:
                try:
                    state = client.read_flow_run(flow_run.id).state
                except httpx.HTTPError as error:
                    if time.monotonic() - answered > _AWAY_S:
                        raise ConnectionError(f"Prefect's server does not answer: {error}") from error
                    state = None
                if state is not None:
                    answered = time.monotonic()
                    if state.is_final():
                        return state
                    if state.is_scheduled() and answered - told > _WAITING_S:
                        told = answered
                        logger.warning(
                            "%s waits for a worker; start one for the work pool of %s", flow_run.name, deployment
                        )
                if self._over.wait(_POLL_S):
                    raise CancelledRun(f"{flow_run.name} was given up: the run that sent it has ended")


def _start(deployment: str, stage: Task[..., R], inputs: dict[str, Any]) -> FlowRun:
    """Make a run of the deployment; the same attempt makes one, however often it is asked for."""
    context = TaskRunContext.get()
    attempt = f"{context.task_run.id}-{context.task_run.run_count}" if context else None
    parameters = {"stage": stage.name, "inputs": encode(stage, inputs), "sources": source_digest()}
    try:
        return run_deployment(
            deployment, parameters=parameters, flow_run_name=stage.name, timeout=0, idempotency_key=attempt
        )
    except ObjectNotFound as error:
        raise ConfigError(
            f"compute.gpu_stages.deployment: there is no deployment {deployment}; run `grpo deploy`, or leave "
            "compute.gpu_stages out"
        ) from error
    except httpx.TransportError as error:
        raise ConnectionError(f"Prefect's server cannot be reached: {error}") from error


def _outcome(stage: Task[..., R], flow_run: FlowRun, state: State[Any], store: str) -> R:
    """The result of a run that has ended, or its error."""
    message = state.message or ""
    if state.is_completed():
        return read_result(stage, message, store)
    if state.is_crashed():
        raise ConnectionError(f"{flow_run.name} was lost: {message}")
    if state.is_cancelled():
        raise CancelledRun(f"{flow_run.name} was cancelled: {message}")
    raise read_error(message) or RuntimeError(f"{flow_run.name} failed: {message}")


def _cancel(flow_run: UUID) -> None:
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run, Cancelling(message="the run that sent it has ended"))
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("flow run %s could not be cancelled: %s", flow_run, error)
