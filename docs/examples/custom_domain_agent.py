"""Custom domain: an agent with domain knowledge, and an environment that verifies success from its state.

    python docs/examples/custom_domain_agent.py [MODEL_FOLDER]

The environment is a library desk, which records the agent's words in its state and checks them at the end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from grpo import (
    AgentConfig,
    ConversationEnvironment,
    EnvironmentState,
    Message,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    Outcome,
    RewardContext,
    RewardFunction,
    RewardResult,
    StepResult,
    TrainingConfig,
)

KNOWLEDGE = "Loans last four weeks. They are renewed once."


class LibraryDesk(ConversationEnvironment):
    """Library desk that records the words of the agent."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Add the words of the reply to the state."""
        result = await super().step(state, action)
        words = (*result.state.world.get("words", ()), *action.content.casefold().split())
        return StepResult(
            state=result.state.after(world={**result.state.world, "words": words}),
            response=result.response,
            terminated=result.terminated,
            truncated=result.truncated,
        )

    def verify(self, state: EnvironmentState) -> Outcome:
        """Succeed if the agent mentioned the order."""
        mentioned = "order" in " ".join(state.world.get("words", ()))
        return Outcome(success=mentioned, checks={"order_mentioned": mentioned})


class ServedReward(RewardFunction):
    """1 for success, minus a length penalty of at most .5."""

    name = "served"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        assert context.outcome is not None
        words = sum(len(turn.content.split()) for turn in turns if turn.role == "assistant")
        return RewardResult(score=float(context.outcome.success) - min(0.5, words / 200))


async def main(model: str = "data/models/desk_clerk", iterations: int = 4) -> MultiTurnGRPOTrainer:
    """Train the agent and return the trainer."""
    agent = MultiTurnAgent(AgentConfig(model_name=model, system_prompt=f"You work in a library. {KNOWLEDGE}"))
    environment = LibraryDesk(
        [
            {"id": "renew", "topic": "loan", "user_responses": ["May I keep the atlas for longer?", "Number 12345."]},
            {"id": "late", "topic": "fee", "user_responses": ["I am late with a novel.", "It is 54321."]},
        ],
        max_turns=2,
    )
    config = TrainingConfig(iterations=iterations, scenarios=2, max_new_tokens=32)
    trainer = MultiTurnGRPOTrainer(agent, environment, ServedReward(), config)
    await trainer.train()
    for record in trainer.monitor.records:
        print(f"iteration {record.index + 1}: reward {record.rollout.reward:.3f}, served {record.rollout.success:.0%}")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
