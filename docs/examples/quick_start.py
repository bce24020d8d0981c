"""Quick start: an agent, three conversations, a reward, and a training run.

    python docs/examples/quick_start.py [MODEL_FOLDER]

Without a folder it trains the tiny model of this repository. Its words will not be pretty, as it knows a support desk
and nothing else; what is shown is the way: take a model of your own.
"""

from __future__ import annotations

import asyncio
import sys

from grpo import (
    AgentConfig,
    CompositeReward,
    ConcisenessReward,
    ConversationEnvironment,
    HelpfulnessReward,
    MultiTurnAgent,
    train,
)


async def main(model: str = "data/models/desk_clerk", iterations: int = 4) -> MultiTurnAgent:
    """Train on a few scripted users; returns the agent."""
    agent = MultiTurnAgent(
        AgentConfig(model_name=model, system_prompt="You are a helpful assistant.", max_new_tokens=48)
    )
    await agent.initialize()
    environment = ConversationEnvironment(
        [
            {"id": "greeting", "topic": "general", "user_responses": ["Hello! Can you help me?", "What can you do?"]},
            {"id": "order", "topic": "order", "user_responses": ["Where is my order 12345?", "Thank you."]},
            {"id": "refund", "topic": "refund", "user_responses": ["The lamp is broken.", "The order is 54321."]},
        ],
        max_turns=2,
    )
    reward = CompositeReward([HelpfulnessReward(weight=0.7), ConcisenessReward(weight=0.3)])
    before = agent.policy.hash
    trained = await train(agent, environment, reward, profile="balanced", iterations=iterations, scenarios=2)
    print(f"policy {before} has become {trained.policy.hash}")
    print("Agent:", await trained.generate_response([{"role": "user", "content": "Hello! Can you help me?"}]))
    return trained


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
