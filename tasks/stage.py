"""Stages: tasks with a cache identity, a retry rule, and a result that is made of artifacts.

The cache is ours, not Prefect's: Prefect reads a stored result with whatever serializer the file names, pickle among
them, and notices no change in it. A hit shows as Cached in Prefect's page all the same.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.tasks import exponential_backoff
from prefect.transactions import TransactionState, get_transaction

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.errors import ArtifactError, GRPOError
from grpo.identity.code import runs_user_code
from grpo.identity.file_reads import recorded_reads
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from tasks.identity import stage_key
from tasks.results import StageResult, read_result, write_result

P = ParamSpec("P")
R = TypeVar("R", bound=StageResult)

logger = logging.getLogger(__name__)

TRANSIENT = (ConnectionError, TimeoutError, BrokenExecutor)
"""Faults that a second try can mend: a dropped connection, a time-out, a worker that died."""


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


def stage(function: Callable[P, R]) -> Task[P, R]:
    """Make a function a stage: cached by identity, computed by one run at a time, retried with growing pauses.

    Its parameter `store` is where the result is kept, and the only input that is not part of the identity.
    """
    return _stage(function, function, alone=True)


def relayed(stage: Task[P, R], send: Callable[[dict[str, Any]], R]) -> Task[P, R]:
    """Make the same stage, computed by whatever `send` gives its inputs to; that locks, so this does not."""
    signature = inspect.signature(stage.fn)

    def relay(*args: P.args, **kwargs: P.kwargs) -> R:
        return send(dict(signature.bind(*args, **kwargs).arguments))

    return _stage(inspect.unwrap(stage.fn), relay, alone=False)


def find_result(stage: Task[P, R], inputs: dict[str, Any]) -> R | None:
    """Look the result of a stage up; None where it is not in the cache, or is not as it was."""
    function = inspect.unwrap(stage.fn)
    given = inspect.signature(function).bind(**inputs)
    given.apply_defaults()
    key = stage_key(stage.name, given.arguments)
    try:
        return read_result(ArtifactStore(inputs["store"]), key, _result_type(function))
    except ArtifactError:
        return None


def _stage(function: Callable[P, R], compute: Callable[P, R], *, alone: bool) -> Task[P, R]:
    """Make a task of `compute` that has the name, signature and identity of `function`."""
    signature, name = inspect.signature(function), function.__name__
    kind = _result_type(function)  # here, where its module's names are known: a Dask worker gets the function alone

    @functools.wraps(function)
    def work(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        store, key = ArtifactStore(given.arguments["store"]), stage_key(name, given.arguments)
        with file_lock(_lock(key)) if alone else nullcontext():
            try:
                cached = read_result(store, key, kind)
            except ArtifactError as error:
                logger.warning("%s is computed again: %s", name, error)
                progress.report(f"{name} again: {error}", 0, 1)
                cached = None
            if cached is not None:
                _show_as_cached()
                return cached
            result = _computed(compute, store, given)
            write_result(store, key, result)
            return result

    return task(
        name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=3,
        retry_delay_seconds=exponential_backoff(backoff_factor=0.5),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )(work)


def _computed(compute: Callable[..., R], store: ArtifactStore, given: inspect.BoundArguments) -> R:
    """Compute a stage; where it runs a user's code, note the files that this reads."""
    if not runs_user_code(given.arguments.values()):
        return compute(*given.args, **given.kwargs)
    with recorded_reads() as recorder:
        result = compute(*given.args, **given.kwargs)
    own = (home(), Path(store.root)) if store.is_local else (home(),)
    return result.model_copy(update={"reads": recorder.digests(exclude=own)})


def _show_as_cached() -> None:
    """Let the task run end as Cached: its work was committed before."""
    transaction = get_transaction()
    if transaction is not None:
        transaction.state = TransactionState.COMMITTED


def _result_type(function: Callable[..., R]) -> type[R]:
    kind: type[R] = get_type_hints(function)["return"]
    return kind


def _lock(key: str) -> Path:
    return home() / "locks" / hashlib.sha256(key.encode()).hexdigest()[:32]
