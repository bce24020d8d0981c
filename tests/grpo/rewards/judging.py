"""What the tests of text rewards share: one conversation, judged."""

from __future__ import annotations

import asyncio

from grpo.messages import Message
from grpo.rewards.reward import RewardContext, RewardFunction, RewardResult
from grpo.scenarios.scenario import Expected, Scenario


def conversation(*said: str) -> tuple[Message, ...]:
    """Customer and agent in turns; the customer speaks first."""
    return tuple(Message(role="assistant" if k % 2 else "user", content=text) for k, text in enumerate(said))


def judged(
    reward: RewardFunction, *said: str, facts: tuple[str, ...] = (), responses: tuple[str, ...] = (), context: str = ""
) -> RewardResult:
    """What a reward says of this conversation, in a scenario that expects these facts or replies."""
    scenario = Scenario(
        id="s", user_responses=(said[0],), context=context, expected=Expected(facts=facts, responses=responses)
    )
    seen = RewardContext(scenario_id="s", category="c", stop="terminated", scenario=scenario)
    return asyncio.run(reward.compute_reward(conversation(*said), seen))
