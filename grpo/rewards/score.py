"""Judge played episodes: the score stage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter

from grpo.errors import RewardError, Unscored
from grpo.rewards.reward import Episode, RewardFunction, RewardResult
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Trajectory

_GROUPS_AT_ONCE = 16
"""Groups that a reward may judge at the same time, as one that asks a server does."""


def score(
    trajectories: Iterable[Trajectory], reward: RewardFunction, scenarios: Mapping[str, Scenario] | None = None
) -> Iterator[Trajectory]:
    """Give each trajectory its terminal reward and breakdown, in order; siblings, which follow each other, together.

    `scenarios`, by id, are what rewards may hold an episode against. A failed episode keeps reward None, and so does
    one that could not be judged: None is not 0. No more than a few groups are held at a time. Raises `RewardError`
    with the place when a reward cannot judge at all.
    """
    known = scenarios or {}
    groups = (list(siblings) for _, siblings in groupby(trajectories, key=attrgetter("scenario_id")))

    judged: list[list[Trajectory]] = []

    async def judge(window: Sequence[list[Trajectory]]) -> None:  # a runner would print what its coroutine returns
        judged[:] = await asyncio.gather(*(_judge(siblings, reward, known) for siblings in window))

    with asyncio.Runner() as runner:
        while window := list(islice(groups, _GROUPS_AT_ONCE)):
            runner.run(judge(window))
            for siblings in judged:
                yield from siblings


async def _judge(
    siblings: Sequence[Trajectory], reward: RewardFunction, scenarios: Mapping[str, Scenario]
) -> list[Trajectory]:
    finished = [trajectory for trajectory in siblings if trajectory.stop != "failed"]
    if not finished:
        return list(siblings)
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
    found = iter(results)
    return [trajectory if trajectory.stop == "failed" else _scored(trajectory, next(found)) for trajectory in siblings]


def _scored(trajectory: Trajectory, result: RewardResult | Unscored) -> Trajectory:
    if isinstance(result, Unscored):
        return replace(trajectory, error=f"unscored: {result}")
    return replace(
        trajectory, terminal_reward=result.score, breakdown=dict(result.breakdown), judgement=result.metadata
    )
