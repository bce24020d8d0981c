"""Backends and builders that the tests of agents share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.tool_agent import ToolAgent
from grpo.config.agent import AgentConfig
from grpo.config.rollout import RolloutSettings
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import Environment
from grpo.messages import Message
from grpo.policy.policy import Generation, Policy, Prompt, Sampling
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Trajectory

T = TypeVar("T")


class Echo:
    """A custom backend that reads messages, records its prompts, and repeats the last message."""

    hash = "echo"
    max_context = 10_000

    def __init__(self) -> None:
        self.prompts: list[tuple[Message, ...]] = []

    def reply(self, last: Message) -> str:
        return f"You said: {last.content}"

    @asynccontextmanager
    async def sampler(self, *, concurrency: int, renderer: Renderer) -> AsyncIterator[EchoSampler]:
        yield EchoSampler(self, renderer)


class EchoSampler:
    def __init__(self, policy: Echo, renderer: Renderer) -> None:
        self.policy, self.renderer = policy, renderer

    def open(self) -> EchoSampler:
        return self

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Generation:
        self.policy.prompts.append(prompt.messages)
        await asyncio.sleep(0)
        ids = self.renderer.encode_reply(Message(role="assistant", content=self.policy.reply(prompt.messages[-1])))
        return Generation(token_ids=ids, logprobs=None, stop="stop")

    def close(self) -> None:
        pass


def run(awaitable: Awaitable[T]) -> T:
    async def main() -> T:
        return await awaitable

    return asyncio.run(main())


def stub(*replies: str, tools: Sequence[object] = (), **settings: object) -> ToolAgent | MultiTurnAgent:
    """An initialized agent with these scripted replies."""
    config = AgentConfig(use_stub_model=True, stub_responses=replies, **settings)  # type: ignore[arg-type]
    agent = ToolAgent(config, tools) if tools else MultiTurnAgent(config)  # type: ignore[arg-type]
    run(agent.initialize())
    return agent


def make_agent(policy: Policy, kind: type[MultiTurnAgent] = MultiTurnAgent, **settings: object) -> MultiTurnAgent:
    """An initialized agent of this class with a policy."""
    agent = kind(AgentConfig(**settings), policy=policy)  # type: ignore[arg-type]
    run(agent.initialize())
    return agent


def roll_out(
    agent: MultiTurnAgent,
    policy: Policy,
    renderer: Renderer,
    *,
    lines: Sequence[str] = ("hello", "my order", "bye"),
    group_size: int = 2,
    world: Environment | None = None,
    seed: int = 0,
    **settings: object,
) -> list[Trajectory]:
    """Collect episodes of one scripted user with this agent, as a training run does."""
    plan = {"max_new_tokens": 6, "max_context": 1000, "on_truncation": "continue", "error_budget": 0.0, **settings}
    return collect(
        [Scenario(id="s", user_responses=tuple(lines))],
        policy,
        world or ConversationEnvironment(),
        renderer,
        RolloutSettings.model_validate(plan),
        group_size=group_size,
        temperature=1.0,
        run_seed=seed,
        iteration=0,
        agent=agent,
    )
