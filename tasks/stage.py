"""What makes a function a stage: its cache identity, its retry rule, and a result that is made of artifacts."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.tasks import exponential_backoff
from prefect.transactions import IsolationLevel
from pydantic import BaseModel, ConfigDict

import grpo
from grpo.artifacts import Artifact
from grpo.errors import GRPOError
from grpo.rewards.rubrics import RUBRICS
from tasks.locks import FlockLockManager

P = ParamSpec("P")
R = TypeVar("R")

NUMERIC_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "trl", "peft", "accelerate")
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


@functools.cache
def source_digest() -> str:
    """Digest of the `grpo` sources and of the rubrics."""
    digest = hashlib.sha256()
    for root in (Path(grpo.__file__).parent, RUBRICS):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".j2", ".yaml"):
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def code_digest() -> str:
    """Digest of the sources and of the packages that numbers depend on: a change there recomputes all stages."""
    digest = hashlib.sha256(source_digest().encode())
    for package, version in package_versions().items():
        digest.update(f"{package}=={version}".encode())
    return digest.hexdigest()[:16]


def package_versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    return {package: importlib.metadata.version(package) for package in NUMERIC_PACKAGES}


def identity(value: Any) -> Any:
    """The part of a stage's input that its result depends on: an artifact is its digest, wherever it lies."""
    if isinstance(value, Artifact):
        return value.sha256
    if isinstance(value, BaseModel):
        return {name: identity(item) for name, item in value}
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    if isinstance(value, dict):
        return {str(name): identity(item) for name, item in value.items()}
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of a cache identity; pass numbers, texts or artifacts")


def stage_key(name: str, inputs: dict[str, Any]) -> str:
    """Cache identity: stage, its inputs without the address of the store, and the code."""
    relevant = {key: identity(value) for key, value in inputs.items() if key != "store"}
    text = json.dumps([name, code_digest(), relevant], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()}"


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


def home() -> Path:
    """Folder of everything that runs leave behind on this machine."""
    return Path(os.environ.get("GRPO_HOME", "runs")).resolve()


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
