"""Sales: a multi-objective reward with a floor on one of the objectives.

python docs/examples/sales_assistant.py [MODEL_FOLDER]
"""

from __future__ import annotations

import asyncio
import sys

from grpo import (
    CONVERSATION_CONFIGS,
    AgentConfig,
    ConcisenessReward,
    ConversationEnvironment,
    EngagementReward,
    HelpfulnessReward,
    MultiObjectiveReward,
    MultiTurnAgent,
    train,
)


async def main(model: str = "data/models/desk_clerk", iterations: int = 4) -> MultiTurnAgent:
    """Train for helpful, engaging and short replies; returns the agent."""
    reward = MultiObjectiveReward(
        objectives=[
            {"name": "helpfulness", "reward": HelpfulnessReward(), "weight": 0.5},
            {"name": "engagement", "reward": EngagementReward(), "weight": 0.3},
            {"name": "conciseness", "reward": ConcisenessReward(), "weight": 0.2},
        ],
        aggregation="weighted_sum",
    )
    agent = MultiTurnAgent(AgentConfig(model_name=model, strategy="sales"))
    environment = ConversationEnvironment(**CONVERSATION_CONFIGS["sales"])
    await agent.initialize()
    before = agent.policy.hash
    trained = await train(agent, environment, reward, iterations=iterations, scenarios=2, max_new_tokens=32)
    print(f"policy {before} has become {trained.policy.hash}")
    return trained


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
