"""Customer service: a support desk with environment-verified success.

    python docs/examples/customer_service_agent.py [ITERATIONS]

The environment has tools and records. The reward depends on the final state of the records, not on the text of the
replies.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from grpo import (
    AgentConfig,
    ChecksReward,
    CompositeReward,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    Scenario,
    TaskCompletionReward,
    TrainingConfig,
)
from grpo.environments.support_desk.desk import SupportDesk

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS, HELDOUT = 96, 24


async def main(iterations: int = 4) -> dict[str, float]:
    """Train on customers of the shipped pack and evaluate on held-out ones; returns the metrics."""
    lines = (ROOT / "data" / "scenarios" / "support_desk.jsonl").read_text(encoding="utf-8").splitlines()
    scenarios = [Scenario.model_validate(json.loads(line)) for line in lines[: SCENARIOS + HELDOUT]]
    agent = MultiTurnAgent(AgentConfig(model_name=str(ROOT / "data" / "models" / "desk_clerk")))
    trainer = MultiTurnGRPOTrainer(
        agent,
        SupportDesk(),
        CompositeReward([TaskCompletionReward(weight=0.7), ChecksReward(weight=0.3)]),
        TrainingConfig.from_profile(
            "aggressive", iterations=iterations, scenarios=16, max_new_tokens=32, concurrency=128
        ),
        scenarios=scenarios[:SCENARIOS],
        eval_scenarios=scenarios[SCENARIOS:],
    )
    before = await trainer.evaluate()
    await trainer.train()
    after = await trainer.evaluate()
    print(f"held-out success: {before['success']:.0%} before, {after['success']:.0%} after")
    return after


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:2])))
