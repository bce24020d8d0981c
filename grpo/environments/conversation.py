"""Open conversations: an agent and a user, and no world but their words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.environments.users.user import ScriptedUser, User
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome

TurnReward = Callable[[EnvironmentState], Awaitable[float]]
"""Scores the conversation up to and with the agent's last turn."""


class ConversationEnvironment(Environment):
    """A user talks to the agent until one of them is done: by default user turn k is line k of the scenario's script.

    `scenarios` are those that `reset()` picks from, shuffled or in file order; the pipeline gives its own to `reset`.
    A conversation is cut off after `max_turns` turns of the agent. `reward_fn` gives each turn a reward of its own,
    beside what judges the whole conversation later. The scenario's context is told to the agent.
    """

    def __init__(
        self,
        scenarios: Iterable[ScenarioLike] = (),
        max_turns: int = 10,
        reward_fn: TurnReward | None = None,
        randomize_scenarios: bool = True,
        *,
        system_prompt: str = "",
        user: User | None = None,
    ) -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=randomize_scenarios)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.reward_fn = reward_fn
        self.system_prompt = system_prompt
        self.user = user or ScriptedUser()

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """The user says the first words."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        said = await self.user.open(scenario, seed=seed)
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=said.words or ""),),
            metadata={"user": said.memory},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """The user answers; when the user leaves the episode has ended, at `max_turns` it is cut off."""
        state = state.after(action, turn_count=state.turn_count + 1)
        result = await self._respond(state, action)
        if self.reward_fn is None:
            return result
        return replace(result, reward=float(await self.reward_fn(state)))

    async def _respond(self, state: EnvironmentState, action: Message) -> StepResult:
        """What answers the agent's message, the last of the history."""
        return await self._hear_user(state)

    async def _hear_user(self, state: EnvironmentState) -> StepResult:
        """Let the user answer. Who leaves ends the episode even at its last turn: that is no cut."""
        said = await self.user.answer(state.scenario, state.history, state.metadata["user"])
        metadata = {**state.metadata, "user": said.memory}
        if said.words is None:
            return StepResult(state=state.after(done=True, metadata=metadata), response=None, terminated=True)
        if state.turn_count >= self.max_turns:
            return StepResult(state=state.after(done=True, metadata=metadata), response=None, truncated=True)
        response = Message(role="user", content=said.words)
        return StepResult(state=state.after(response, metadata=metadata), response=response)

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario that the user cannot play."""
        self.user.check(scenario)

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """Findings of the user; None for a script, which finds nothing.

        A user finds whether facts were told. Other parts that the scenario's success is made of are not judged here.
        """
        expected = state.scenario.expected
        checks = self.user.checks(state.scenario, state.history, state.metadata["user"])
        judged = {"COMMUNICATE"} if checks else set()
        if expected.reward_basis is None:
            judged |= {"DB", "COMMUNICATE"}
        unjudged = tuple(part for part in expected.basis if part not in judged)
        return Outcome.of(checks, unjudged=unjudged) if checks or unjudged else None

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Hold what the user needs."""
        async with self.user.serve(concurrency=concurrency):
            yield
