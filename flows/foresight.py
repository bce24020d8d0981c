"""A ledger that looks stages up and runs none: how far a run is in the cache already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prefect import Task

from grpo.evaluation.schema import StageTiming
from tasks.results import StageResult
from tasks.stage import find_result

R = TypeVar("R", bound=StageResult)


class NotComputed(Exception):
    """This stage is in no cache: what depends on it cannot be known before it has run."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"{stage} is not in the cache")
        self.stage = stage


class Still:
    """A bar that nobody sees."""

    def reach(self, done: int) -> None:
        """See `Advance.reach`."""


class Foresight:
    """Answers what a `Ledger` is asked with cached results, and raises `NotComputed` where there is none."""

    def __init__(self) -> None:
        self.reads: dict[str, str | None] = {}
        self.hits: Counter[str] = Counter()
        """Runs of each stage that are in the cache."""
        self.found: list[StageResult] = []

    def run(self, stage: Task[..., R], **inputs: Any) -> R:
        """See `Ledger.run`."""
        return self.map(stage, [inputs])[0]

    def map(self, stage: Task[..., R], inputs: Sequence[dict[str, Any]]) -> list[R]:
        """See `Ledger.map`; shards that are in the cache count, even if one of them is not."""
        results = [find_result(stage, one) for one in inputs]
        known = [result for result in results if result is not None]
        self.hits[stage.name] += len(known)
        self.found.extend(known)
        for result in known:
            self.reads.update(result.reads)
        if len(known) < len(inputs):
            raise NotComputed(stage.name)
        return known

    def start(self, stage: Task[..., R], **inputs: Any) -> Callable[[], R]:
        """See `Ledger.start`."""
        result = self.run(stage, **inputs)
        return lambda: result

    def retention(self, store: str) -> None:
        """Nothing is kept and nothing removed."""

    def advance(self, iterations: int) -> Still:
        """See `Ledger.advance`."""
        return Still()

    def timings(self) -> tuple[StageTiming, ...]:
        """Nothing was run."""
        return ()
