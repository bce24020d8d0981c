"""Chat with a model in the environment of a config, which answers the model's tool calls.

The person at the terminal replaces the environment's user. The world of the environment comes from one scenario.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grpo.agents.backend import make_backend
from grpo.agents.catalog import make_evaluated_agent
from grpo.agents.multi_turn import MultiTurnAgent
from grpo.agents.transcript import Reply
from grpo.config.agent import AgentConfig
from grpo.config.pipeline import PipelineConfig
from grpo.environments.catalog import make_environment
from grpo.environments.environment import Environment, EnvironmentState
from grpo.errors import ConfigError
from grpo.messages import Message
from grpo.policy.policy import Policy
from grpo.policy.renderer import make_renderer
from grpo.scenario import Scenario
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, ingest
from grpo.scenarios.table import read_scenarios
from grpo.user_failures import user_code

Watch = Callable[[str], None]
"""Receives a line for each call and its result, and a remark if the environment ends the episode."""


class ToolChat:
    """One conversation at a time of an agent with a person, in an environment that executes the agent's calls."""

    def __init__(self, agent: MultiTurnAgent, environment: Environment, scenario: Scenario, watch: Watch) -> None:
        self.scenario = scenario
        self._agent = agent
        self._environment = environment
        self._watch = watch
        self._history: tuple[Message, ...] = ()
        self._state: EnvironmentState | None = None

    def chat(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the reply to each line of one conversation. Empty lines are skipped."""
        with asyncio.Runner() as runner:
            for line in lines:
                if line.strip():
                    yield runner.run(self.reply((Message(role="user", content=line.strip()),)))

    def reply_to(self, conversation: Sequence[Message]) -> str:
        """Reply to a whole conversation in a new world."""
        self._history, self._state = (), None
        return asyncio.run(self.reply(conversation))

    async def reply(self, messages: Sequence[Message]) -> str:
        """Reply to new messages. Calls are executed until the agent replies without a call."""
        async with self._environment.serve(concurrency=1), self._agent.open_transcript() as transcript:
            state = self._state or await self._begin()
            new = (*self._history, *messages)
            state = state.after(*messages)
            while True:
                with user_code("the agent", passes=transcript.caused):
                    reply = await self._agent.respond(transcript, new)
                if not reply.message.tool_calls and reply.message.malformed is None:
                    state = state.after(reply.message)
                    break
                self._watch_calls(reply)
                with user_code("the environment", transient=True):
                    result = await self._environment.step(state, reply.message)
                state = result.state
                if result.response is None or result.response.role == "user":
                    self._watch(f"the environment of scenario {self.scenario.id} ends the episode here")
                    state = replace(state, done=False)
                    break
                self._watch(f"result {result.response.content}")
                if result.terminated or result.truncated:
                    self._watch(f"the environment of scenario {self.scenario.id} ends the episode here")
                    break
                new = (result.response,)
            self._state, self._history = state, tuple(transcript.conversation)
            return reply.text

    async def _begin(self) -> EnvironmentState:
        """State of a new episode, without the user's first message. The conversation begins with the system prompt."""
        with user_code("the environment", transient=True):
            state = await self._environment.reset(self.scenario, seed=0)
        system_prompt = "\n\n".join(filter(None, (self._environment.system_prompt, state.context)))
        self._history = (Message(role="system", content=system_prompt),) if system_prompt else ()
        return replace(state, history=())

    def _watch_calls(self, reply: Reply) -> None:
        for call in reply.message.tool_calls:
            self._watch(f"call {call}")
        if reply.message.malformed:
            self._watch(f"malformed call: {reply.message.malformed}")


def open_tool_chat(
    config: PipelineConfig, model: str, policy: Policy | None, scenario: str | None, watch: Watch
) -> ToolChat:
    """Open a chat with a model, its agent and tools as in the evaluation of a config.

    `policy` is given if the model is a checkpoint. Raises `ConfigError` if the environment has no tools, or the
    scenario is unknown.
    """
    environment, agent = make_environment(config.environment), make_evaluated_agent(config, model)
    chosen = _scenario(config, scenario)
    if not (environment.tools or chosen.tools or agent.tools):
        raise ConfigError(
            f"environment {config.environment.kind} has no tools for scenario {chosen.id}. Leave CONFIG out to chat "
            "with the model"
        )
    opened = policy or make_backend(AgentConfig(model_name=model), None)
    tokenizer = getattr(opened, "tokenizer", None)
    if tokenizer is not None:
        tools = (*environment.tools, *agent.tools)
        agent.renderer = make_renderer(tokenizer, tools=tools, settings=config.policy.renderer)
    agent.set_policy(opened)
    return ToolChat(agent, environment, chosen, watch)


def _scenario(config: PipelineConfig, name: str | None) -> Scenario:
    """The named scenario of a config, or its first."""
    with tempfile.TemporaryDirectory() as scratch:
        table, quarantine = Path(scratch) / SCENARIOS_FILE, Path(scratch) / QUARANTINE_FILE
        bound = config.scenarios.max_quarantined_fraction
        ingest(config.scenarios.sources, table, quarantine, max_quarantined_fraction=bound)
        chosen = next((scenario for scenario in read_scenarios(table) if name in (None, scenario.id)), None)
    if chosen is None:
        raise ConfigError(f"no scenario {name!r} in the sources of run {config.name}. `grpo ingest` writes their table")
    return chosen
