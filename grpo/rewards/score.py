"""Judge played episodes: the score stage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace

from grpo.errors import RewardError
from grpo.rewards.reward import RewardContext, RewardFunction
from grpo.trajectories import Trajectory


def score(trajectories: Iterable[Trajectory], reward: RewardFunction) -> Iterator[Trajectory]:
    """Give each trajectory its terminal reward and breakdown, one at a time.

    A failed episode keeps reward None: None is not 0. Raises `RewardError` with the place when a reward cannot judge.
    """
    runner = asyncio.Runner()
    with runner:
        for trajectory in trajectories:
            if trajectory.stop == "failed":
                yield trajectory
                continue
            context = RewardContext(
                scenario_id=trajectory.scenario_id,
                category=trajectory.category,
                stop=trajectory.stop,
                outcome=trajectory.outcome,
            )
            try:
                result = runner.run(reward.compute_reward(trajectory.messages, context))
            except RewardError as error:
                raise RewardError(f"{trajectory.place}: {error}") from error
            yield replace(trajectory, terminal_reward=result.score, breakdown=dict(result.breakdown))
