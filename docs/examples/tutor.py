"""Tutoring: learners of two levels, a custom reward function, and the automatic trainer.

python docs/examples/tutor.py [MODEL_FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from grpo import (
    CONVERSATION_CONFIGS,
    AgentConfig,
    AutoTrainer,
    CompositeReward,
    ConversationEnvironment,
    Message,
    MultiTurnAgent,
    create_domain_reward,
    reward_function,
)


@reward_function(weight=0.2)
async def asks_back(turns: Sequence[Message], context: Any = None) -> float:
    """Fraction of replies that end with a question."""
    replies = [turn.content.strip() for turn in turns if turn.role == "assistant"]
    return sum(reply.endswith("?") for reply in replies) / max(1, len(replies))


async def main(model: str = "data/models/desk_clerk", iterations: int = 4) -> AutoTrainer:
    """Train with an automatic profile; returns the trainer with its reasons."""
    agent = MultiTurnAgent(AgentConfig(model_name=model, strategy="educational"))
    environment = ConversationEnvironment(**CONVERSATION_CONFIGS["education"])
    reward = CompositeReward([(create_domain_reward("education"), 0.8), asks_back])
    trainer = AutoTrainer(auto_adjust=True)
    await trainer.train(agent, environment, reward, iterations=iterations, scenarios=2, max_new_tokens=32)
    print(f"profile {trainer.profile}: {trainer.reason}")
    for change in trainer.adjustments:
        print(f"after iteration {change.index + 1} {change.setting}: {change.before} → {change.after}, {change.reason}")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
