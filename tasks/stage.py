"""What makes a function a stage: its cache identity, its retry rule, and a result that is made of artifacts."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.tasks import exponential_backoff
from prefect.transactions import IsolationLevel
from pydantic import BaseModel, ConfigDict

from grpo.artifacts import Artifact
from grpo.errors import GRPOError
from tasks.home import home
from tasks.identity import stage_key
from tasks.locks import FlockLockManager

P = ParamSpec("P")
R = TypeVar("R")

TRANSIENT = (ConnectionError, TimeoutError, BrokenExecutor)
"""Faults that a second try can mend: a dropped connection, a time-out, a worker that died."""


class StageResult(BaseModel):
    """What a stage hands on: artifacts and numbers, never tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compute_s: float
    """Seconds that the work itself took, when it was last done."""

    def artifacts(self) -> list[Artifact]:
        """Every artifact of this result."""
        return [value for _, value in self if isinstance(value, Artifact)]


class Clock:
    """Seconds since the stage began."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start


def is_transient(task: Task[Any, Any], task_run: Any, state: State[Any]) -> bool:
    """Retry only what a second try can mend; a `GRPOError` fails at once."""
    try:
        state.result()
    except GRPOError:
        return False
    except TRANSIENT:
        return True
    except BaseException:
        return False
    return False


def _key(context: TaskRunContext, inputs: dict[str, Any]) -> str:
    return stage_key(context.task.name, inputs)


_POLICY = CacheKeyFnPolicy(
    cache_key_fn=_key,
    isolation_level=IsolationLevel.SERIALIZABLE,
    lock_manager=FlockLockManager(lambda: home() / "locks"),
)


_RELAYED = CacheKeyFnPolicy(cache_key_fn=_key)


def stage(function: Callable[P, R]) -> Task[P, R]:
    """Make a function a stage: cached by identity, computed by one run at a time, retried with growing pauses."""
    return _stage(function, _POLICY)


def relayed(stage: Task[P, R], send: Callable[[dict[str, Any]], R]) -> Task[P, R]:
    """The same stage, done by whoever `send` gives its inputs to: cached and retried like the stage itself.

    It locks nothing: who does the work does.
    """
    signature = inspect.signature(stage.fn)

    @functools.wraps(stage.fn)
    def relay(*args: P.args, **kwargs: P.kwargs) -> R:
        return send(dict(signature.bind(*args, **kwargs).arguments))

    return _stage(relay, _RELAYED)


def _stage(function: Callable[P, R], policy: CacheKeyFnPolicy) -> Task[P, R]:
    return task(
        name=function.__name__,
        cache_policy=policy,
        persist_result=True,
        result_serializer="json",
        retries=3,
        retry_delay_seconds=exponential_backoff(backoff_factor=0.5),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )(function)
