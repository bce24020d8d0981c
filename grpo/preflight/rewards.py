"""Checks of rewards: they can be made, known exploits earn nothing, and they score a played episode without raising."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from grpo.config.rewards import RewardComponent
from grpo.errors import ConfigError, GRPOError, RewardError, Unscored
from grpo.preflight.facts import Facts
from grpo.rewards.catalog import make_composite_reward, make_reward
from grpo.rewards.hacking.check import check_rewards
from grpo.rewards.judge.ruler import RulerReward
from grpo.rewards.reward import (
    Episode,
    RewardFunction,
    RewardResult,
    check_columns,
    checked_results,
    errors_at,
    reward_code,
)
from grpo.scenarios.columns import missing_columns
from grpo.strict_json import encode


def made(facts: Facts) -> Iterator[Exception]:
    """Try the known exploits on each reward. If a reward raises, the error names its file and line."""
    for component in facts.given.reward:
        try:
            with reward_code(_name(component)):
                check_rewards([component])
        except GRPOError as error:
            yield error


def composed(facts: Facts) -> Iterator[Exception]:
    """Put the components together, with their floors."""
    make_composite_reward(facts.given.reward)
    yield from ()


def columns(facts: Facts) -> Iterator[Exception]:
    """Look in every scenario for the columns that the user's own rewards take."""
    for component in facts.given.reward:
        try:
            check_columns(make_reward(component), facts.playable())
        except RewardError as error:
            yield ConfigError(str(error))


def scored(facts: Facts) -> Iterator[Exception]:
    """Score a played episode with each reward except LLM judges, because their answers cost."""
    scenarios = {scenario.id: scenario for scenario in facts.playable()}
    played = [trajectory for trajectory in facts.episodes() if trajectory.stop != "failed"]
    if not played:
        return
    with asyncio.Runner() as runner:
        for component in facts.given.reward:
            reward = make_reward(component)
            if isinstance(reward, RulerReward):
                continue
            trajectory = played[0]
            scenario = scenarios.get(trajectory.scenario_id)
            if reward.needed_columns and missing_columns(reward.needed_columns, scenario):
                continue  # reported by `columns`
            try:
                runner.run(_score(reward, Episode.of(trajectory, scenario), _name(component)))
            except Unscored:
                continue
            except RewardError as error:
                yield ConfigError(str(error))
            except GRPOError as error:
                yield error


async def _score(reward: RewardFunction, episode: Episode, name: str) -> None:
    with errors_at(f"scenario {episode.context.scenario_id}, with a scripted reply"), reward_code(name):
        for result in checked_results(await reward.compute_group([episode]), [episode], name):
            if isinstance(result, RewardResult):
                encode(dict(result.metadata))  # what the run would leave out as unscored


def _name(component: RewardComponent) -> str:
    return component.object or component.kind
