"""A ledger that looks stages up and runs none: how far a run is in the cache already."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prefect import Task
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore

from grpo.artifacts import ArtifactStore
from grpo.errors import ArtifactError
from grpo.evaluation.document import StageTiming
from tasks.identity import stage_key
from tasks.stage import StageResult

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

    def __init__(self, store: str) -> None:
        self._store = ArtifactStore(store)
        folder = LocalFileSystem(basepath=os.environ["PREFECT_LOCAL_STORAGE_PATH"])
        self._results = ResultStore(result_storage=folder)
        self.hits: Counter[str] = Counter()
        """Runs of each stage that are in the cache."""
        self.found: list[StageResult] = []

    def run(self, stage: Task[..., R], *, refresh: bool = False, **inputs: Any) -> R:
        """See `Ledger.run`."""
        return self.map(stage, [inputs])[0]

    def map(self, stage: Task[..., R], inputs: Sequence[dict[str, Any]]) -> list[R]:
        """See `Ledger.map`; shards that are in the cache count, even if one of them is not."""
        results = [self._look_up(stage, one) for one in inputs]
        known = [result for result in results if result is not None]
        self.hits[stage.name] += len(known)
        self.found.extend(known)
        if len(known) < len(inputs):
            raise NotComputed(stage.name)
        return known

    def start(self, stage: Task[..., R], **inputs: Any) -> Callable[[], R]:
        """See `Ledger.start`."""
        result = self.run(stage, **inputs)
        return lambda: result

    def advance(self, iterations: int) -> Still:
        """See `Ledger.advance`."""
        return Still()

    def timings(self) -> tuple[StageTiming, ...]:
        """Nothing was run."""
        return ()

    def _look_up(self, stage: Task[..., R], inputs: dict[str, Any]) -> R | None:
        """The result of a stage, if it is in the cache and what it left is as it was."""
        given = inspect.signature(stage.fn).bind(**inputs)
        given.apply_defaults()
        key = stage_key(stage.name, given.arguments)
        if not self._results.exists(key):
            return None
        result: R = self._results.read(key).result
        try:
            for artifact in result.artifacts():
                self._store.verify(artifact)
        except ArtifactError:
            return None
        return result
