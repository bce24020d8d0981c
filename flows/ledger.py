"""Runs stages and keeps account: what was cached, what was computed, how long the run waited."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect import Task
from prefect.states import State

from grpo import progress
from grpo.artifacts import ArtifactStore
from grpo.errors import ArtifactError
from grpo.evaluation.document import StageTiming
from tasks.stage import StageResult

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

    def __init__(self, store: str) -> None:
        self._store = ArtifactStore(store)
        self._entries: dict[str, _Entry] = {}

    def run(self, stage: Task[..., R], *, refresh: bool = False, **inputs: Any) -> R:
        """Run one stage, or take its cached result if its artifacts are still what they were."""
        return self.map(stage, [inputs], refresh=refresh)[0]

    def map(self, stage: Task[..., R], inputs: Sequence[dict[str, Any]], *, refresh: bool = False) -> list[R]:
        """Run one stage on several inputs at once, in the flow's task runner."""
        entry = self._entries.setdefault(stage.name, _Entry())
        started = time.perf_counter()
        progress.report(stage.name, 0, len(inputs))
        chosen = stage.with_options(refresh_cache=True) if refresh else stage
        if len(inputs) == 1:
            states = [chosen(**inputs[0], return_state=True)]
        else:
            futures = [chosen.submit(**one) for one in inputs]
            for future in futures:
                future.wait()
            states = [future.state for future in futures]
        results = [self._settle(entry, stage, one, state) for one, state in zip(inputs, states, strict=True)]
        entry.wall_s += time.perf_counter() - started
        progress.report(stage.name, len(inputs), len(inputs), cached=float(all(_is_cached(s) for s in states)))
        return results

    def _settle(self, entry: _Entry, stage: Task[..., R], inputs: dict[str, Any], state: State[R]) -> R:
        """Count a stage; recompute it when what it left in the store is missing or damaged."""
        result: R = state.result()
        entry.runs += 1
        if not _is_cached(state):
            entry.compute_s += result.compute_s
            return result
        try:
            for artifact in result.artifacts():
                self._store.verify(artifact)
        except ArtifactError as error:
            logger.warning("%s is computed again: %s", stage.name, error)
            progress.report(f"{stage.name} again: {error}", 0, 1)
            result = stage.with_options(refresh_cache=True)(**inputs)
            entry.compute_s += result.compute_s
            return result
        entry.cached += 1
        return result

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


def _is_cached(state: State[Any]) -> bool:
    return state.name == "Cached"
