"""Scores of one conversation, for the tests of rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from grpo.config.rewards import RewardComponent
from grpo.messages import Message
from grpo.rewards.catalog import make_composite_reward
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenario import Expected, Scenario
from grpo.trajectories import Outcome


def conversation(*texts: str) -> tuple[Message, ...]:
    """Turns of user and agent in alternation; the user begins."""
    return tuple(Message(role="assistant" if k % 2 else "user", content=text) for k, text in enumerate(texts))


def scored(
    reward: RewardFunction,
    *texts: str,
    facts: tuple[str, ...] = (),
    responses: tuple[str, ...] = (),
    context: str = "",
) -> RewardResult:
    """Result of a reward for this conversation, in a scenario that expects these facts or replies."""
    scenario = Scenario(
        id="s", user_responses=(texts[0],), context=context, expected=Expected(facts=facts, responses=responses)
    )
    episode = RewardContext(scenario_id="s", category="c", stop="terminated", scenario=scenario)
    return asyncio.run(reward.compute_reward(conversation(*texts), episode))


def user(text: str) -> Message:
    """A user message."""
    return Message(role="user", content=text)


def agent(text: str) -> Message:
    """A reply of the agent."""
    return Message(role="assistant", content=text)


def tool(text: str) -> Message:
    """A tool result."""
    return Message(role="tool", content=text)


def judge(kind: str, turns: Sequence[Message], *, outcome: Outcome | None = None, **options: object) -> float:
    """Score that a reward of the config gives to these messages."""
    reward = make_composite_reward([RewardComponent(kind=kind, weight=1.0, options=options)])  # type: ignore[arg-type]
    context = RewardContext(scenario_id="s", category="c", stop="terminated", outcome=outcome)
    return asyncio.run(reward.compute_reward(turns, context)).score
