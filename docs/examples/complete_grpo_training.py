"""Complete training: profile, validation scenarios, checkpoints, resume, adjustments, and a report per iteration.

    python docs/examples/complete_grpo_training.py FOLDER [ITERATIONS]

Kill it and call it again with the same folder: it goes on where it stopped, to the same weights.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from grpo import (
    Adjuster,
    AgentConfig,
    ChecksReward,
    CompositeReward,
    EarlyStoppingCallback,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    Scenario,
    TaskCompletionReward,
    TrainingConfig,
)
from grpo.environments.support_desk.desk import SupportDesk

ROOT = Path(__file__).resolve().parents[2]


async def main(folder: str, iterations: int = 4) -> MultiTurnGRPOTrainer:
    """Train in `folder`; returns the trainer."""
    lines = (ROOT / "data" / "scenarios" / "support_desk.jsonl").read_text(encoding="utf-8").splitlines()
    scenarios = [Scenario.model_validate(json.loads(line)) for line in lines[:120]]
    config = TrainingConfig.from_profile(
        "aggressive",
        iterations=iterations,
        scenarios=16,
        max_new_tokens=32,
        concurrency=128,
        eval_steps=2,
        save_steps=2,
        lr_scheduler_type="cosine",
    )
    trainer = MultiTurnGRPOTrainer(
        MultiTurnAgent(AgentConfig(model_name=str(ROOT / "data" / "models" / "desk_clerk"))),
        SupportDesk(),
        CompositeReward([TaskCompletionReward(weight=0.7), ChecksReward(weight=0.3)]),
        config,
        scenarios=scenarios[:96],
        eval_scenarios=scenarios[96:],
        folder=folder,
    )
    trainer.register_callback(
        "on_iteration_end",
        lambda record, checkpoint, progress: print(
            f"{record.index + 1}/{progress.iterations}  reward {record.rollout.reward:.3f}  "
            f"KL {record.update.kl_to_base:.4f}  entropy {record.update.entropy:.3f}"
        ),
    )
    trainer.register_callback("on_evaluate", lambda index, metrics, progress: print(f"  held out: {metrics}"))
    await trainer.train([Adjuster(trainer), EarlyStoppingCallback(patience=20)])
    return trainer


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:3])))
