"""Scoring of a rollout: the score stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter

from grpo.errors import BudgetError, RewardError, Unscored
from grpo.rewards.judge.assertions import AssertionJudge
from grpo.rewards.reward import Episode, RewardFunction, RewardResult
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory

logger = logging.getLogger(__name__)

_GROUPS_AT_ONCE = 16
"""Groups scored at the same time: a reward that calls a server answers them together."""


def score(
    trajectories: Iterable[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario] | None = None,
    *,
    judge: AssertionJudge | None = None,
) -> Iterator[Trajectory]:
    """Give each trajectory its terminal reward and breakdown, in order; the members of a group stand together.

    `scenarios`, by id, give rewards the expected outcome. `judge` completes outcomes with unjudged assertions before
    the reward sees them. A failed episode keeps reward None, and so does one without a score: None is not 0. Only a
    few groups are held at a time. Raises `RewardError` with the place when a reward cannot score at all.
    """
    by_id = scenarios or {}
    groups = (list(members) for _, members in groupby(trajectories, key=attrgetter("scenario_id")))

    scored: list[list[Trajectory]] = []

    async def score_groups(window: Sequence[list[Trajectory]]) -> None:  # a runner would format what this returns
        scored[:] = await asyncio.gather(*(_score_group(group, reward, by_id, judge) for group in window))

    with asyncio.Runner() as runner:
        while window := list(islice(groups, _GROUPS_AT_ONCE)):
            runner.run(score_groups(window))
            for group in scored:
                yield from group


def score_rollout(
    trajectories: Iterable[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario] | None = None,
    *,
    judge: AssertionJudge | None = None,
    error_budget: float,
) -> list[Trajectory]:
    """Score a whole rollout; see `score`.

    Raises `BudgetError` when more than `error_budget` of the episodes could not be scored, and `RewardError` when none
    could because their success includes a part without a judge.
    """
    scored = list(score(trajectories, reward, scenarios, judge=judge))
    unscored = [trajectory for trajectory in scored if trajectory.stop != "failed" and trajectory.total_reward is None]
    if judge is None:  # a missing judge is counted, not an error
        unscored = _without_unjudged(scored, unscored)
    if len(unscored) > error_budget * len(scored):
        raise BudgetError(
            f"{len(unscored)} of {len(scored)} episodes could not be judged, more than rollout.error_budget "
            f"{error_budget:.0%}; the first at {unscored[0].place}: {unscored[0].error}"
        )
    return scored


def _without_unjudged(scored: Sequence[Trajectory], unscored: Sequence[Trajectory]) -> list[Trajectory]:
    """Unscored episodes that are errors: all but those whose success has a part without a judge.

    The number of the latter is logged. Raises `RewardError` where all finished episodes are among them.
    """
    waiting = [trajectory for trajectory in unscored if trajectory.outcome is not None and trajectory.outcome.unjudged]
    if not waiting:
        return list(unscored)
    finished = sum(trajectory.stop != "failed" for trajectory in scored)
    parts = sorted({part for trajectory in waiting if trajectory.outcome for part in trajectory.outcome.unjudged})
    summary = (
        f"{len(waiting)} of {finished} episodes have no reward: nothing judges {', '.join(parts)} of their success"
    )
    if len(waiting) == finished:
        raise RewardError(f"{summary}; set judge, which judges assertions, or a reward that asks less, such as checks")
    logger.warning("%s; set judge to judge assertions", summary)
    return [trajectory for trajectory in unscored if trajectory.outcome is None or not trajectory.outcome.unjudged]


async def _score_group(
    group: Sequence[Trajectory],
    reward: RewardFunction,
    scenarios: Mapping[str, Scenario],
    judge: AssertionJudge | None,
) -> list[Trajectory]:
    if judge is not None:
        group = await asyncio.gather(*(judge.complete_outcome(t, scenarios.get(t.scenario_id)) for t in group))
    finished = [trajectory for trajectory in group if trajectory.stop != "failed"]
    if not finished:
        return list(group)
    episodes = [Episode.of(trajectory, scenarios.get(trajectory.scenario_id)) for trajectory in finished]
    results: list[RewardResult | Unscored]
    try:
        results = await reward.compute_group(episodes)
    except Unscored as reason:
        results = [reason] * len(finished)
    except RewardError as error:
        raise RewardError(f"scenario {finished[0].scenario_id}: {error}") from error
    if len(results) != len(finished):
        raise RewardError(
            f"scenario {finished[0].scenario_id}: {len(results)} scores for {len(finished)} siblings; "
            "compute_group returns one for each"
        )
    remaining = iter(results)
    return [trajectory if trajectory.stop == "failed" else _scored(trajectory, next(remaining)) for trajectory in group]


def _scored(trajectory: Trajectory, result: RewardResult | Unscored) -> Trajectory:
    if isinstance(result, Unscored):
        return replace(trajectory, error=f"unscored: {result}")
    return replace(
        trajectory,
        terminal_reward=result.score,
        breakdown=dict(result.breakdown),
        reward_metadata={**trajectory.reward_metadata, **result.metadata},
    )
