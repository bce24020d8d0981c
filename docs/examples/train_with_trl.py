"""Training with TRL: rollouts and rewards of this package, updates by TRL's GRPOTrainer.

python docs/examples/train_with_trl.py [ITERATIONS]
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from grpo import AgentConfig, ChecksReward, MultiTurnAgent, MultiTurnGRPOTrainer, Scenario, TrainingConfig
from grpo.environments.support_desk.desk import SupportDesk

ROOT = Path(__file__).resolve().parents[2]


async def main(iterations: int = 2) -> MultiTurnGRPOTrainer:
    """Train the support desk's model with TRL; returns the trainer."""
    lines = (ROOT / "data" / "scenarios" / "support_desk.jsonl").read_text(encoding="utf-8").splitlines()
    trainer = MultiTurnGRPOTrainer(
        MultiTurnAgent(AgentConfig(model_name=str(ROOT / "data" / "models" / "desk_clerk"))),
        SupportDesk(),
        ChecksReward(),
        TrainingConfig(engine="trl", iterations=iterations, scenarios=8, max_new_tokens=32),
        scenarios=[Scenario.model_validate(json.loads(line)) for line in lines[:32]],
    )
    await trainer.train()
    for record in trainer.monitor.records:
        print(f"iteration {record.index + 1}: reward {record.rollout.reward:.3f}, loss {record.update.loss:.4f}")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:2])))
