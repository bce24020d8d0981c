"""Executors of a flow run. They run stages in this thread, on a task runner or on the GPU pool, and record timings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from grpo import progress
from grpo.config.pipeline import ComputeSettings
from grpo.config.rollout import RolloutSettings
from grpo.evaluation.schema import StageTiming
from grpo.interrupts import stoppable
from grpo.storage.home import private_files
from grpo_tasks.execution.remote import RemoteStages
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import Call, Stage, executed_by
from grpo_tasks.execution.task_runners import one_thread, shard_runner

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=StageResult)
Prepare = Callable[[Sequence[Call[Any]]], None]
"""Called with the calls of a stage before they run, for example to start the servers that they need."""


@dataclass(slots=True)
class _Timing:
    runs: int = 0
    cached: int = 0
    compute_s: float = 0.0
    wall_s: float = 0.0


class InProcessExecutor:
    """Runs stages in this process, one after the other, without task runs, so that no Prefect server is needed."""

    def run(self, calls: Sequence[Call[R]]) -> list[R]:
        """See `grpo_tasks.execution.stage.Executor`."""
        return [call.stage.fn(**call.inputs) for call in calls]

    def start(self, call: Call[R]) -> Callable[[], R]:
        """See `grpo_tasks.execution.stage.Executor`. The call runs at once."""
        result = call.stage.fn(**call.inputs)
        return lambda: result


class StageExecutor:
    """Runs stages, and counts cached runs, the time of computed ones, and the time that the flow waited."""

    def __init__(self, runner: TaskRunner[Any], remote: RemoteStages, prepare: Prepare | None = None) -> None:
        self.reads: dict[str, str | None] = {}
        """Files, folders and variables that a user's code has read so far, with their digests."""
        self._runner = runner
        self._remote = remote
        self._prepare = prepare
        self._timings: dict[str, _Timing] = {}

    def run(self, calls: Sequence[Call[R]]) -> list[R]:
        """See `grpo_tasks.execution.stage.Executor`. One call runs in this thread, several on the task runner.

        On a cluster one call is sent as well, except of a stage that another machine runs: this process waits for it.
        """
        if self._prepare is not None:
            self._prepare(calls)
        stage, started = calls[0].stage, time.perf_counter()
        task = self._announce(stage, len(calls))
        is_here = isinstance(self._runner, ThreadPoolTaskRunner) or self._remote.sends(stage)
        if len(calls) == 1 and is_here:
            states: list[State[R]] = [task(**calls[0].inputs, return_state=True)]
        else:
            states = _wait([self._runner.submit(task, call.inputs) for call in calls])
        return self._results(stage, states, started)

    def start(self, call: Call[R]) -> Callable[[], R]:
        """See `grpo_tasks.execution.stage.Executor`. The flow's own task runner has a thread for the call."""
        future = self._announce(call.stage, 1).submit(**call.inputs)

        def result() -> R:
            started = time.perf_counter()
            results: list[R] = self._results(call.stage, _wait([future]), started)
            return results[0]

        return result

    def timings(self) -> tuple[StageTiming, ...]:
        """One row per stage, in the order in which the stages first ran."""
        return tuple(
            StageTiming(
                name=name,
                runs=timing.runs,
                cached=timing.cached,
                compute_s=round(timing.compute_s, 3),
                wall_s=round(timing.wall_s, 3),
            )
            for name, timing in self._timings.items()
        )

    def _announce(self, stage: Stage[..., R], count: int) -> Task[..., R]:
        self._timings.setdefault(stage.name, _Timing())
        progress.report(stage.name, 0, count)
        return self._remote.task(stage)

    def _results(self, stage: Stage[..., R], states: Sequence[State[R]], started: float) -> list[R]:
        """Results of finished runs of a stage. Adds them to the timings and to what a user's code has read."""
        timing = self._timings[stage.name]
        results: list[R] = []
        for state in states:
            result: R = state.result()
            results.append(result)
            timing.runs += 1
            timing.cached += _is_cached(state)
            timing.compute_s += 0.0 if _is_cached(state) else result.compute_s
            self.reads.update(result.reads)
            logger.debug("%s is %s: %s", stage.name, "cached" if _is_cached(state) else "computed", result)
        timing.wall_s += time.perf_counter() - started
        cached = float(all(map(_is_cached, states)))
        progress.report(stage.name, len(states), len(states), cached=cached, **results[-1].numbers())
        return results


@contextmanager
def stage_executor(
    rollout: RolloutSettings | None = None,
    compute: ComputeSettings | None = None,
    *,
    prepare: Prepare | None = None,
) -> Iterator[StageExecutor]:
    """Run the stages that the block calls: shards on the task runner of `rollout`, GPU stages as `compute` says.

    Ctrl-C and SIGTERM end them within seconds, whatever they are doing, see `grpo.interrupts`. Only its owner can read
    what they write, even if Prefect has started the process of the flow run.
    """
    entered = one_thread() if rollout is None else shard_runner(rollout)
    with private_files(), stoppable(), entered as runner, RemoteStages(compute or ComputeSettings()) as remote:
        executor = StageExecutor(runner, remote, prepare)
        with executed_by(executor):
            yield executor


def _wait(futures: Sequence[PrefectFuture[R]]) -> list[State[R]]:
    """Final states. If workers died again and again, Dask's future raises, and Ray's has the state of a crash."""
    for future in futures:
        future.wait()
        future.result(raise_on_failure=False)
    return [future.state for future in futures]


def _is_cached(state: State[Any]) -> bool:
    return state.name == "Cached"
