"""Episodes that a run has recorded in its store, and the selection of some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from grpo.artifacts import store_of
from grpo.errors import ConfigError, DataError
from grpo.evaluation.schema import ReportDocument, RolloutRecord
from grpo.tables import read_all
from grpo.trajectories import Trajectory

Ending = Literal["success", "failure", "truncated", "turn_limit", "failed"]
"""`success` and `failure` are verified outcomes, the others are stop reasons. An episode that was cut off may be a
`success` or `failure` as well."""
Side = Literal["before", "after"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Condition on an episode. A part that is None holds for all episodes."""

    scenario: str | None = None
    category: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    """An episode without a reward is outside of any bound."""
    outcome: Ending | None = None

    def __post_init__(self) -> None:
        if self.outcome is not None and self.outcome not in get_args(Ending):
            raise ConfigError(f"outcome {self.outcome!r} is unknown. Use one of {', '.join(get_args(Ending))}")

    def __call__(self, trajectory: Trajectory) -> bool:
        """Check an episode."""
        reward = trajectory.total_reward
        bounded = self.min_reward is not None or self.max_reward is not None
        return (
            self.scenario in (None, trajectory.scenario_id)
            and self.category in (None, trajectory.category)
            and not (bounded and reward is None)
            and (self.min_reward is None or reward is None or reward >= self.min_reward)
            and (self.max_reward is None or reward is None or reward <= self.max_reward)
            and self._ends(trajectory)
        )

    def _ends(self, trajectory: Trajectory) -> bool:
        match self.outcome:
            case None:
                return True
            case "success":
                return trajectory.success is True
            case "failure":
                return trajectory.success is False
            case stop:
                return trajectory.stop == stop


def recorded_parts(document: ReportDocument) -> tuple[RolloutRecord, ...]:
    """Records of a run's rollouts. Raises `DataError` if the report has none."""
    if not document.rollouts:
        raise DataError(
            f"the report of run {document.name} names no rollouts, because none was finished or an earlier version of "
            "this package wrote it. Run it again: its finished stages are in the cache"
        )
    return document.rollouts


def read_part(document: ReportDocument, part: Side | int) -> list[Trajectory]:
    """Read the episodes of one part.

    Raises `DataError` if the run does not have this part, `ArtifactError` if files are missing or damaged.
    """
    records = {record.part: record for record in recorded_parts(document)}
    if part not in records:
        iterations = [name for name in records if isinstance(name, int)]
        numbers = f"iterations {min(iterations)} to {max(iterations)}" if iterations else "no iterations"
        sides = ", ".join(str(name) for name in records if not isinstance(name, int)) or "no evaluation"
        raise DataError(f"run {document.name} has no rollouts {part}. It has {numbers}, and {sides}")
    return [
        trajectory for artifact in records[part].scored for trajectory in read_all([store_of(artifact).path(artifact)])
    ]


def matched_episodes(
    sides: Sequence[Sequence[Trajectory]], selects: EpisodeFilter
) -> Iterator[tuple[Trajectory | None, ...]]:
    """Pairs of episodes of the same scenario and sample, one per side, if at least one of the two is selected.

    before a/0 b/0, after a/0 b/0   →   (a/0, a/0), (b/0, b/0)

    A side that lacks the episode has None. Pairs are in the order of the first side.
    """
    by_key = [{(t.scenario_id, t.sample): t for t in side} for side in sides]
    for key in dict.fromkeys(key for side in by_key for key in side):
        row = tuple(side.get(key) for side in by_key)
        if any(trajectory is not None and selects(trajectory) for trajectory in row):
            yield row
