"""One conversation, scored: a helper of the tests of text rewards."""

from __future__ import annotations

import asyncio

from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenarios.scenario import Expected, Scenario


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
