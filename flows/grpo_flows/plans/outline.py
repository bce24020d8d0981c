"""Outline of a command that is not run: statements by name, and the stages that are in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from grpo_flows.dry_run import CacheLookup, NotCached
from grpo_tasks.execution.results import StageResult
from grpo_tasks.execution.stage import executed_by

T = TypeVar("T")
R = TypeVar("R", bound=StageResult)


class Outline(BaseModel):
    """Statements about a command."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Generic[T]):
    """Stages of a flow, followed through the cache as far as it goes."""

    result: T | None
    """Result of the flow, if all stages are cached."""
    lookup: CacheLookup
    missing: str | None
    """First stage that would be computed. None if all are cached."""

    def first(self, kind: type[R]) -> R | None:
        """First cached result of a type."""
        return next((result for result in self.lookup.results if isinstance(result, kind)), None)

    @property
    def stages(self) -> str:
        """Cached stages, and the first one that would be computed."""
        hits = ", ".join(
            name if count == 1 else f"{name} ({count} runs)" for name, count in self.lookup.hits.items() if count
        )
        rest = "nothing is computed" if self.missing is None else f"computed: {self.missing} and the stages after it"
        return f"in the cache: {hits or 'none'}; {rest}"


def follow(flow: Callable[[], T]) -> Followed[T]:
    """Run the body of a flow with cached results only, up to the first stage that is not cached."""
    lookup, missing = CacheLookup(), None
    result: T | None = None
    with executed_by(lookup):
        try:
            result = flow()
        except NotCached as miss:
            missing = miss.stage
    return Followed(result=result, lookup=lookup, missing=missing)
