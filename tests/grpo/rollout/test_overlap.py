from __future__ import annotations

import asyncio
from pathlib import Path

from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import EnvironmentState, StepResult
from grpo.messages import Message
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenarios.scenario import Scenario

SLOW, QUICK, TURNS = 64, 4, 3


class Counter(ConversationEnvironment):
    """Answers slow scenarios only when all of them wait and all quick ones have ended."""

    def __init__(self) -> None:
        super().__init__(max_turns=TURNS)
        self.open = asyncio.Event()
        self.waiting = self.most = self.quick_turns = self.turns_meanwhile = 0

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        quick = state.scenario.topic == "quick"
        if quick:
            self.quick_turns += 1
            self.turns_meanwhile += self.most == SLOW
        elif not self.open.is_set():
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        if self.most == SLOW and self.quick_turns == QUICK * TURNS:
            self.open.set()
        if not quick:
            await self.open.wait()
        return await super().step(state, action)


def test_tools_of_all_episodes_are_waited_for_at_once_while_others_speak(tiny_folder: Path):
    """64 episodes wait for a tool that answers none until four more have spoken all their turns."""
    lines = ("hello", "my order", "bye")
    scenarios = [Scenario(id=f"slow{k}", topic="slow", user_responses=lines) for k in range(SLOW)]
    scenarios += [Scenario(id=f"quick{k}", topic="quick", user_responses=lines) for k in range(QUICK)]
    policy, world = load(tiny_folder), Counter()
    played = collect(
        scenarios,
        policy,
        world,
        Renderer(policy.tokenizer),
        RolloutSettings(
            max_new_tokens=4, on_truncation="continue", concurrency=SLOW + QUICK, error_budget=0.0, step_timeout_s=60
        ),
        group_size=1,
        temperature=1.0,
        run_seed=1,
        iteration=0,
    )
    assert world.most == SLOW
    assert world.turns_meanwhile >= QUICK
    assert {t.stop for t in played} == {"terminated"}
