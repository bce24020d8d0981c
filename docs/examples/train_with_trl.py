"""TRL takes the steps: the same rollouts and rewards, TRL's GRPOTrainer for the update.

python docs/examples/train_with_trl.py [MODEL_FOLDER]
"""

from __future__ import annotations

import asyncio
import sys

from grpo import (
    AgentConfig,
    ConversationEnvironment,
    HelpfulnessReward,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    TrainingConfig,
)


async def main(model: str = "data/models/desk_clerk", episodes: int = 32) -> MultiTurnGRPOTrainer:
    """Two updates by TRL; returns the trainer."""
    environment = ConversationEnvironment(
        [
            {"id": "order", "topic": "order", "user_responses": ["Where is my order 12345?"]},
            {"id": "refund", "topic": "refund", "user_responses": ["The lamp is broken."]},
        ],
        max_turns=1,
    )
    config = TrainingConfig(
        engine="trl", num_episodes=episodes, gradient_accumulation_steps=2, learning_rate=1e-4, max_new_tokens=32
    )
    agent = MultiTurnAgent(AgentConfig(model_name=model))
    trainer = MultiTurnGRPOTrainer(agent, environment, HelpfulnessReward(), config)
    await trainer.train()
    for record in trainer.monitor.records:
        print(f"iteration {record.index + 1}: reward {record.rollout.reward:.3f}, loss {record.update.loss:.4f}")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
