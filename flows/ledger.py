"""Runs stages and keeps account: what was cached, what was computed, how long the run waited."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from prefect import Task
from prefect.futures import PrefectFuture
from prefect.states import State
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.advance import Advance
from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.evaluation.schema import StageTiming
from grpo.registry.retention import Retention
from tasks.results import StageResult

if TYPE_CHECKING:
    from flows.dispatch import Dispatch

logger = logging.getLogger(__name__)
R = TypeVar("R", bound=StageResult)


@dataclass(slots=True)
class _Entry:
    runs: int = 0
    cached: int = 0
    compute_s: float = 0.0
    wall_s: float = 0.0


class Ledger:
    """The stages of one run, in the order in which they first ran."""

    def __init__(self, runner: TaskRunner[Any], elsewhere: Dispatch | None = None) -> None:
        self.reads: dict[str, str | None] = {}
        """Files that a user's code has read so far, with their digests."""
        self._runner = runner
        self._elsewhere = elsewhere
        self._entries: dict[str, _Entry] = {}

    def run(self, stage: Task[..., R], **inputs: Any) -> R:
        """Run one stage in this thread, or take its cached result."""
        placed = self._place(stage)
        self._announce(stage, 1)
        return self._account(stage, [inputs], lambda: [placed(**inputs, return_state=True)])[0]

    def map(self, stage: Task[..., R], inputs: Sequence[dict[str, Any]]) -> list[R]:
        """Run one stage on several inputs at once, in the task runner; for a single one this thread will do."""
        placed = self._place(stage)
        if len(inputs) == 1 and isinstance(self._runner, ThreadPoolTaskRunner):
            return [self.run(stage, **inputs[0])]
        self._announce(stage, len(inputs))
        return self._account(stage, inputs, lambda: _ends([self._runner.submit(placed, one) for one in inputs]))

    def start(self, stage: Task[..., R], **inputs: Any) -> Callable[[], R]:
        """Begin one stage in a thread beside this one; what is returned waits for its result."""
        self._announce(stage, 1)
        future = self._place(stage).submit(**inputs)
        return lambda: self._account(stage, [inputs], lambda: _ends([future]))[0]

    def _place(self, stage: Task[..., R]) -> Task[..., R]:
        return stage if self._elsewhere is None else self._elsewhere.place(stage)

    def _announce(self, stage: Task[..., R], count: int) -> None:
        self._entries.setdefault(stage.name, _Entry())
        progress.report(stage.name, 0, count)

    def _account(
        self, stage: Task[..., R], inputs: Sequence[dict[str, Any]], wait: Callable[[], list[State[R]]]
    ) -> list[R]:
        """Wait for the runs of a stage, and count them and the time that it took."""
        entry = self._entries[stage.name]
        started = time.perf_counter()
        states = wait()
        results = [self._settle(entry, stage, state) for state in states]
        entry.wall_s += time.perf_counter() - started
        progress.report(stage.name, len(inputs), len(inputs), cached=float(all(_is_cached(s) for s in states)))
        return results

    def _settle(self, entry: _Entry, stage: Task[..., R], state: State[R]) -> R:
        """Count a stage, and keep what its user's code read."""
        result: R = state.result()
        entry.runs += 1
        entry.cached += _is_cached(state)
        entry.compute_s += 0.0 if _is_cached(state) else result.compute_s
        self.reads.update(result.reads)
        logger.debug("%s is %s: %s", stage.name, "cached" if _is_cached(state) else "computed", result)
        return result

    def retention(self, store: str) -> Retention:
        """Keepers of the checkpoints that a run leaves in a store."""
        return Retention(ArtifactStore(store))

    def advance(self, iterations: int) -> Advance:
        """The bar of a run of so many iterations in Prefect's page."""
        return Advance(iterations)

    def timings(self) -> tuple[StageTiming, ...]:
        """One row a stage."""
        return tuple(
            StageTiming(
                name=name,
                runs=entry.runs,
                cached=entry.cached,
                compute_s=round(entry.compute_s, 3),
                wall_s=round(entry.wall_s, 3),
            )
            for name, entry in self._entries.items()
        )


def _ends(futures: Sequence[PrefectFuture[R]]) -> list[State[R]]:
    """How these runs ended; one that Dask gave up, because its worker died again and again, raises."""
    for future in futures:
        future.result(raise_on_failure=False)
    return [future.state for future in futures]


def _is_cached(state: State[Any]) -> bool:
    return state.name == "Cached"
