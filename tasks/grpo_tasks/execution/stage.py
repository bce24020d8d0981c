"""Stages: cached, retryable steps of the pipeline that exchange artifacts.

The cache is ours and not Prefect's, because Prefect reads a stored result with whatever serializer the file names,
also pickle, and does not notice if the file was changed. Prefect's page still shows a hit as Cached.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, get_type_hints

from grpo import process_settings, progress
from grpo.artifacts import ArtifactStore
from grpo.config.served_log import ServedLogSettings
from grpo.errors import ArtifactError, printable
from grpo.identity.cache_identity import stage_key
from grpo.identity.code import executed_code
from grpo.reads.recording import recorded_reads
from grpo.storage.home import home
from grpo.storage.locks import file_lock
from grpo.user_failures import is_exception, user_code
from grpo_tasks.execution import retries
from grpo_tasks.execution.results import StageResult, lock_path, read_result, write_result
from grpo_tasks.execution.user_reads import own_folders, warn_of_unseen

if TYPE_CHECKING:
    from prefect import Task

P = ParamSpec("P")
R = TypeVar("R", bound=StageResult)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A stage with its inputs, not run yet."""

    stage: Stage[..., R]
    inputs: dict[str, Any]


class Executor(Protocol):
    """Runs the stages of a flow run, see `grpo_tasks.execution.executor` and, for a dry run, `grpo_flows.dry_run`."""

    def run(self, calls: Sequence[Call[R]]) -> list[R]:
        """Results of these calls of one stage, in order. If there are several calls, they may run in parallel."""

    def start(self, call: Call[R]) -> Callable[[], R]:
        """Start a call in the background. The function that is returned waits for its result."""


_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)


class Stage(Generic[P, R]):
    """A function that is cached by identity, computed by one run at a time, and retried with growing pauses.

    The result is kept in the store that its parameter `store` names. Only this input is not part of the identity.
    """

    def __init__(self, function: Callable[P, R], *, cache: bool = True) -> None:
        functools.update_wrapper(self, function)
        self.function: Callable[..., R] = function
        self.name = function.__name__
        self.cache = cache
        self.signature = inspect.signature(function)
        self.result_type: type[R] = get_type_hints(inspect.unwrap(function))["return"]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Result of the stage, from the cache or computed by the executor of this flow run."""
        return run_all([self.bind(*args, **kwargs)])[0]

    @functools.cached_property
    def task(self) -> Task[P, R]:
        """Prefect task that takes the result from the cache, or computes it in this process.

        It is made when a run needs it, so that a dry run, which only looks into the cache, does not load Prefect.
        """
        return self.task_of(self._run)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The stage with these inputs, for `run_all` and `start`."""
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        return Call(self, given.arguments)

    def fn(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Result of the stage, from the cache or computed in this process, without a task run of Prefect."""
        return self._run(self.bind(*args, **kwargs).inputs)

    def find(self, inputs: Mapping[str, Any]) -> R | None:
        """Cached result. None if there is none or if it is damaged."""
        try:
            return read_result(ArtifactStore(inputs["store"]), stage_key(self.name, inputs), self.result_type)
        except ArtifactError:
            return None

    def cached(self, inputs: dict[str, Any], compute: Callable[[dict[str, Any]], R], *, alone: bool) -> R:
        """Cached result, or else the result of `compute`, which is stored.

        With `alone`, the identity is locked for that time, so that no other process computes it as well.
        """
        store, key = ArtifactStore(inputs["store"]), stage_key(self.name, inputs)
        if _reads_log(inputs):  # also for a cached result, which another home may have made
            from grpo.log.copies import remember_store

            remember_store(home(), inputs["store"])
        with file_lock(lock_path(key)) if alone else nullcontext():
            try:
                result = read_result(store, key, self.result_type)
            except ArtifactError as error:
                logger.warning(
                    "stage %s is computed again, because its stored result is not valid: %s", self.name, error
                )
                progress.report(f"{self.name} again: {error}", 1, 1)
                result = None
            if result is not None:
                _show_as_cached()
                return result
            result = compute(inputs)
            write_result(store, key, result)
            return result

    def task_of(self, run: Callable[[dict[str, Any]], R]) -> Task[P, R]:
        """Prefect task with the name, the signature and the retries of this stage. Its work is `run(inputs)`."""

        from prefect import task
        from prefect.cache_policies import NO_CACHE

        def work(*args: P.args, **kwargs: P.kwargs) -> R:
            with _escaped_errors():
                return run(self.bind(*args, **kwargs).inputs)

        work.__name__, work.__doc__, work.__module__ = self.name, self.function.__doc__, self.function.__module__
        work.__signature__ = self.signature  # type: ignore[attr-defined]
        # `__wrapped__` is not set, because a Dask worker would get the function by value, with the globals that it uses
        return task(
            name=self.name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=len(retries.PAUSES_S),
            retry_delay_seconds=list(retries.PAUSES_S),
            retry_jitter_factor=0.2,
            retry_condition_fn=retries.is_transient,
        )(work)

    def _run(self, inputs: dict[str, Any]) -> R:
        return self.cached(inputs, self._compute, alone=True) if self.cache else self._compute(inputs)

    def _compute(self, inputs: dict[str, Any]) -> R:
        """Run the function, measure its time, and record what the user's code reads.

        Settings of the process that the user's code changes are set back, because other stages compute with them.
        A function that lets other threads run the user's code returns what these read in its result.
        If the user's code would end the process, e.g. with `sys.exit`, the stage ends with an error instead.
        """
        started, guarded = time.perf_counter(), user_code(f"stage {self.name}", passes=is_exception)
        settings = process_settings.kept(f"stage {self.name}")
        if self.cache and (code := executed_code(inputs.values())) is not None:
            with recorded_reads(code.modules, code.texts) as reads, settings, guarded:
                result = self.function(**inputs)
            digests = reads.digests(exclude=own_folders(ArtifactStore(inputs["store"])))
            result = result.model_copy(update={"reads": {**result.reads, **digests}})
            warn_of_unseen(self.name, code, reads.unseen)
        else:
            with settings, guarded:
                result = self.function(**inputs)
        return result.model_copy(update={"compute_s": time.perf_counter() - started})

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        """Pickle a stage by its name, so that another process imports it."""
        return _stage_at, (self.__module__, self.name)


def stage(function: Callable[P, R]) -> Stage[P, R]:
    """Make a function a stage, see `Stage`."""
    return Stage(function)


def uncached_stage(function: Callable[P, R]) -> Stage[P, R]:
    """Make a function a stage that is never cached, because its result depends on more than its inputs.

    It is still retried and timed.
    """
    return Stage(function, cache=False)


def run_all(calls: Sequence[Call[R]]) -> list[R]:
    """Results of several calls of one stage, in order."""
    executor = _executor.get()
    return [call.stage.task(**call.inputs) for call in calls] if executor is None else executor.run(calls)


def start(call: Call[R]) -> Callable[[], R]:
    """Start a call in the background. The function that is returned waits for its result."""
    executor = _executor.get()
    if executor is None:
        future = call.stage.task.submit(**call.inputs)
        return lambda: future.result()
    return executor.start(call)


@contextmanager
def executed_by(executor: Executor) -> Iterator[None]:
    """Let an executor run the stages that the block calls."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


def _reads_log(inputs: Mapping[str, Any]) -> bool:
    """True if an input is a serving log, whose conversations the stage copies into the store."""
    values = (item for value in inputs.values() for item in (value if isinstance(value, tuple) else (value,)))
    return any(isinstance(item, ServedLogSettings) for item in values)


@contextmanager
def _escaped_errors() -> Iterator[None]:
    """Escape control characters in an exception: it may come from user code, and Prefect's database keeps its text."""
    try:
        yield
    except Exception as error:
        error.args = tuple(printable(part) if isinstance(part, str) else part for part in error.args)
        raise


def _stage_at(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _show_as_cached() -> None:
    """Let the task run end as Cached, because its work was committed before."""
    from prefect.transactions import TransactionState, get_transaction

    transaction = get_transaction()
    if transaction is not None:
        transaction.state = TransactionState.COMMITTED
