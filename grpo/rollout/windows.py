"""Windows of a continuous rollout: which groups begin, which groups an update trains on, and which are too stale.

Update k trains version k of the policy on window k and makes version k + 1. Groups begin in the order of the schedule.
Window k has as many groups as iteration k draws: the first ones that are completed after window k - 1.

version      0               1               2
group a      ████ window 0                              staleness 0 - 0
group b      ██████ window 0                            staleness 0 - 0
group c      ███████████████████ window 1               staleness 1 - 0: it began under version 0
group d           ███████ window 1                      staleness 1 - 0
group e                           ██████ window 2       staleness 2 - 1
group f                ████████████████████████         too stale for window 3, if max_staleness is 2

Staleness is the number of the window minus the version of the group's oldest token. The queue begins groups for at
most `max_staleness` windows after the one that the next update trains on, so that the rollout never runs further ahead.
A window has a scenario only once, because the learner compares the episodes of a scenario with each other.

This module counts and compares. `grpo.rollout.continuous` generates the episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from grpo.errors import BudgetError
from grpo.trajectories import Trajectory

_SMALLEST_GROUP = 2
"""Fewest episodes of a group, because their rewards are compared with each other."""


class GroupDraw(BaseModel):
    """A scenario as the schedule draws it for an iteration. The seeds of its episodes follow from both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iteration: int
    scenario_id: str


class QueueState(BaseModel):
    """Groups with which another process continues after a window. Their episodes begin again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unfinished: tuple[GroupDraw, ...] = ()
    """Groups that had begun and are in no window."""
    iteration: int = 0
    """Iteration of the next draw of the schedule."""
    drawn: int = 0
    """Scenarios of this iteration that were drawn before."""


class WindowMetrics(BaseModel):
    """Staleness of a window's episodes, and overlap of the rollout with the updates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    staleness_mean: float
    """Mean staleness of the episodes: updates between the policy of the oldest token and the one that is trained."""
    staleness_max: int
    dropped_episodes: int
    """Episodes that were dropped when the window was closed, because they would be too stale for the next one."""
    busy_share: float | None
    """Share of the time since the window before in which episodes and an update were in progress at once. None for the
    first window of a process."""


@dataclass(slots=True, eq=False)
class Group:
    """A group that has begun and is in no window yet."""

    draw: GroupDraw
    episodes: dict[int, Trajectory | None] = field(default_factory=dict)
    """Episodes by sample. None while an episode is in progress. A dropped episode is missing."""

    @property
    def is_complete(self) -> bool:
        """True if no episode is in progress."""
        return None not in self.episodes.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Groups on which one update trains, and the episodes that were dropped when the window was closed."""

    index: int
    trajectories: tuple[Trajectory, ...]
    """In the order in which their groups began, and by sample."""
    staleness: tuple[int, ...]
    """Staleness of each trajectory."""
    dropped: tuple[tuple[Group, int], ...]
    """Group and sample of each episode that would be too stale for the next window, in progress or completed."""
    state: QueueState

    def metrics(self, busy_share: float | None) -> WindowMetrics:
        """Metrics of this window, with the share of time in which both sides were busy."""
        return WindowMetrics(
            staleness_mean=fmean(self.staleness),
            staleness_max=max(self.staleness),
            dropped_episodes=len(self.dropped),
            busy_share=busy_share,
        )


class GroupQueue:
    """Groups of a continuous rollout, from their beginning to their window.

    `draws` returns the scenario ids of an iteration. The queue begins with window `window`, the version of the policy
    with the same number and hash `policy_hash`, and the `state` after the window before.
    """

    def __init__(
        self,
        draws: Callable[[int], Sequence[str]],
        *,
        group_size: int,
        max_staleness: int,
        windows: int,
        error_budget: float,
        policy_hash: str,
        window: int = 0,
        state: QueueState | None = None,
    ) -> None:
        state = state or QueueState()
        self.window = window
        """Window that is filled next."""
        self.windows = windows
        """Number of windows of the run."""
        self.max_staleness = max_staleness
        self.group_size = group_size
        self._draws = draws
        self._error_budget = error_budget
        self._version = window
        self._versions = {policy_hash: window}
        """Newest version of each hash. An update that changes nothing makes a version with the same hash."""
        self._again = list(state.unfinished)
        self._iteration, self._drawn = state.iteration, state.drawn
        self._groups: list[Group] = []
        """All groups that have begun and are in no window, in this order."""
        self._completed: list[Group] = []
        """The complete ones, in the order of their completion."""
        self._failures: list[tuple[Group, int, Trajectory]] = []
        """Failed episodes of the groups in progress, by group and sample."""

    @property
    def is_over(self) -> bool:
        """True if all windows are closed."""
        return self.window >= self.windows

    @property
    def most_groups(self) -> int:
        """Most groups that are in progress at the same time."""
        return (self.max_staleness + 1) * len(self._draws(0))

    @property
    def progress(self) -> tuple[int, int]:
        """Finished episodes of the groups in progress, up to the size of the next window, and that size."""
        episodes = [episode for group in self._groups for episode in group.episodes.values()]
        size = len(self._draws(self.window)) * self.group_size
        return min(size, len(episodes) - episodes.count(None)), size

    def publish(self, policy_hash: str) -> None:
        """Count a further version of the policy."""
        self._version += 1
        self._versions[policy_hash] = self._version

    def begin(self) -> list[Group]:
        """Groups that begin now, so that no window beyond `max_staleness` is filled before its update is near."""
        groups = [self._next_group() for _ in range(self._demand() - len(self._groups))]
        self._groups += groups
        return groups

    def complete(self, group: Group, sample: int, trajectory: Trajectory) -> None:
        """Add a finished episode, unless it was dropped.

        Raises `BudgetError` if too many episodes of the groups in progress have failed.
        """
        if sample not in group.episodes:
            return
        group.episodes[sample] = trajectory
        if group.is_complete:
            self._completed.append(group)
        if trajectory.stop == "failed":
            self._failures.append((group, sample, trajectory))
        total = len(self._groups) * self.group_size
        if len(self._failures) > self._error_budget * total:
            first = self._failures[0][2]
            raise BudgetError(
                f"{len(self._failures)} of {total} episodes have failed, more than rollout.error_budget "
                f"{self._error_budget:.0%}. The others were ended. The first at {first.place}: {first.error}"
            )

    def close(self, first_policy: Callable[[Group, int], str | None]) -> Window | None:
        """Close the window that is filled next, or return None if too few groups are complete.

        A window is smaller than planned only if no episode is in progress and none may begin, because the complete
        groups are of the same scenarios.

        `first_policy` returns the hash of the policy that generated the first token of an episode in progress, or None
        if it has no token yet.
        """
        if self.is_over:
            return None
        size = len(self._draws(self.window))
        is_waiting = len(self._completed) < len(self._groups) or len(self._groups) < self._demand()
        if is_waiting and len(self._completed) < size:
            return None
        first_of_scenario = {group.draw.scenario_id: group for group in reversed(self._completed)}
        ready = [group for group in self._completed if first_of_scenario[group.draw.scenario_id] is group][:size]
        if not ready or (len(ready) < size and is_waiting):
            return None
        taken = set(ready)
        chosen = [group for group in self._groups if group in taken]
        self._groups = [group for group in self._groups if group not in taken]
        self._completed = [group for group in self._completed if group not in taken]
        trajectories = [episode for group in chosen for episode in group.episodes.values() if episode is not None]
        index, self.window = self.window, self.window + 1
        return Window(
            index=index,
            trajectories=tuple(trajectories),
            staleness=tuple(index - self._versions[trajectory.policy_hash] for trajectory in trajectories),
            dropped=tuple(self._drop_stale(first_policy)),
            state=QueueState(
                unfinished=tuple([*(group.draw for group in self._groups), *self._again]),
                iteration=self._iteration,
                drawn=self._drawn,
            ),
        )

    def _demand(self) -> int:
        """Number of groups that may have begun and are in no window."""
        last = min(self._version + self.max_staleness, self.windows - 1)
        return sum(len(self._draws(window)) for window in range(self.window, last + 1))

    def _next_group(self) -> Group:
        if self._again:
            draw = self._again.pop(0)
        else:
            ids = self._draws(self._iteration)
            draw = GroupDraw(iteration=self._iteration, scenario_id=ids[self._drawn])
            self._drawn += 1
            if self._drawn == len(ids):
                self._iteration, self._drawn = self._iteration + 1, 0
        return Group(draw, dict.fromkeys(range(self.group_size)))

    def _drop_stale(self, first_policy: Callable[[Group, int], str | None]) -> list[tuple[Group, int]]:
        """Drop the episodes that are too stale for the next window, and groups of which fewer than two remain."""

        def is_stale(group: Group, sample: int, trajectory: Trajectory | None) -> bool:
            policy = first_policy(group, sample) if trajectory is None else trajectory.policy_hash
            return policy is not None and self.window - self._versions[policy] > self.max_staleness

        dropped: list[tuple[Group, int]] = []
        completed = set(self._completed)
        for group in self._groups:
            stale = [sample for sample, trajectory in group.episodes.items() if is_stale(group, sample, trajectory)]
            if stale and len(group.episodes) - len(stale) < _SMALLEST_GROUP:
                stale = list(group.episodes)
            for sample in stale:
                del group.episodes[sample]
                dropped.append((group, sample))
            if stale and group.episodes and group.is_complete and group not in completed:
                self._completed.append(group)
        self._groups = [group for group in self._groups if group.episodes]
        self._completed = [group for group in self._completed if group.episodes]
        in_progress = set(self._groups)
        self._failures = [
            failure for failure in self._failures if failure[0] in in_progress and failure[1] in failure[0].episodes
        ]
        return dropped
