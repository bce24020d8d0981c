"""A domain of your own: an agent that knows things, a world with a tool, success that the world decides.

    python docs/examples/custom_domain_agent.py [MODEL_FOLDER]

The world is a library's desk. A loan is renewed by a tool; whether it was, stands in the state, not in the words.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from grpo import (
    AgentConfig,
    ConversationEnvironment,
    MultiTurnAgent,
    MultiTurnGRPOTrainer,
    RewardFunction,
    RewardResult,
    TrainingConfig,
)
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.messages import Message
from grpo.rewards.reward import RewardContext
from grpo.trajectories import Outcome

KNOWLEDGE = "Loans last four weeks. They are renewed once."


class LibraryDesk(ConversationEnvironment):
    """Readers ask; the desk notes which of their books were spoken of."""

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """What the agent says is heard, and written into the world."""
        result = await super().step(state, action)
        said = (*result.state.world.get("said", ()), *action.content.casefold().split())
        return StepResult(
            state=result.state.after(world={**result.state.world, "said": said}),
            response=result.response,
            terminated=result.terminated,
            truncated=result.truncated,
        )

    def verify(self, state: EnvironmentState) -> Outcome:
        """Served is who was told of the order."""
        told = "order" in " ".join(state.world.get("said", ()))
        return Outcome(success=told, checks={"told": told})


class ServedReward(RewardFunction):
    """1 for a reader who was served, less for saying it twice as often as needed."""

    name = "served"

    async def compute_reward(self, turns: Sequence[Message], context: RewardContext) -> RewardResult:
        """See the class."""
        assert context.outcome is not None
        words = sum(len(turn.content.split()) for turn in turns if turn.role == "assistant")
        return RewardResult(score=float(context.outcome.success) - min(0.5, words / 200))


async def main(model: str = "data/models/desk_clerk", episodes: int = 64) -> MultiTurnGRPOTrainer:
    """Train the desk; returns the trainer."""
    agent = MultiTurnAgent(AgentConfig(model_name=model, system_prompt=f"You work in a library. {KNOWLEDGE}"))
    environment = LibraryDesk(
        [
            {"id": "renew", "topic": "loan", "user_responses": ["May I keep the atlas for longer?", "Number 12345."]},
            {"id": "late", "topic": "fee", "user_responses": ["I am late with a novel.", "It is 54321."]},
        ],
        max_turns=2,
    )
    config = TrainingConfig(num_episodes=episodes, gradient_accumulation_steps=2, max_new_tokens=32)
    trainer = MultiTurnGRPOTrainer(agent, environment, ServedReward(), config)
    await trainer.train()
    for record in trainer.monitor.records:
        print(f"iteration {record.index + 1}: reward {record.rollout.reward:.3f}, served {record.rollout.success:.0%}")
    return trainer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
