"""Technical support: a preset of conversations, its reward, callbacks, and diagnostics.

python docs/examples/technical_support_agent.py [MODEL_FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo import (
    CONVERSATION_CONFIGS,
    AgentConfig,
    CheckpointCallback,
    ConversationEnvironment,
    EarlyStoppingCallback,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    create_domain_reward,
    get_config_for_task,
)


async def main(model: str = "data/models/desk_clerk", iterations: int = 2) -> MultiTurnGRPOTrainer:
    """Train with the settings of the task; returns the trainer and the diagnostics."""
    agent = MultiTurnAgent(AgentConfig(model_name=model, strategy="technical_support"))
    config = get_config_for_task(
        "technical_support", model_name=model, iterations=iterations, scenarios=3, max_new_tokens=32
    )
    environment = ConversationEnvironment(**CONVERSATION_CONFIGS["technical_support"])
    trainer = MultiTurnGRPOTrainer(agent, environment, create_domain_reward("technical_support"), config)
    with TemporaryDirectory() as folder:
        keeping = CheckpointCallback(Path(folder), keep=2)
        await trainer.train([EarlyStoppingCallback(patience=5), keeping])
        print(f"kept {', '.join(path.name for path in keeping.saved)}")
    health = trainer.monitor.get_health_status()
    print(health.status, *health.reasons.values(), sep="\n  ")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
