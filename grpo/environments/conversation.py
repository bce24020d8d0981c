"""Conversation environment: an agent and a user, without tools."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id, world_digest
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.environments.users.user import ScriptedUser, User
from grpo.messages import Message
from grpo.scenario import NL_ASSERTION, Expected, Scenario
from grpo.trajectories import Outcome

TurnReward = Callable[[EnvironmentState], Awaitable[float]]
"""Reward of the agent's last turn, from the conversation up to it."""


class ConversationEnvironment(Environment):
    """Conversation of a user and the agent. By default, user turn k is line k of the scenario's script.

    `reset()` samples from `scenarios`, shuffled or in file order. The pipeline passes its own scenarios to `reset`. A
    conversation is cut off after `max_turns` turns of the agent. `reward_fn` gives each turn its own reward, in
    addition to the rewards of the whole conversation. The scenario's context is part of the agent's prompt.
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
        """Start with the user's first turn."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        turn = await self.user.first_turn(scenario, seed=seed)
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=turn.content or ""),),
            metadata={"user": turn.memory},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Let the user answer. The episode ends when the user leaves, and is cut off at `max_turns`."""
        state = state.after(action, turn_count=state.turn_count + 1)
        result = await self._respond(state, action)
        if self.reward_fn is None:
            return result
        return replace(result, reward=float(await self.reward_fn(state)))

    async def _respond(self, state: EnvironmentState, action: Message) -> StepResult:
        """Answer the agent's message, the last of the history."""
        return await self._user_turn(state)

    async def _user_turn(self, state: EnvironmentState) -> StepResult:
        """Let the user answer. If the user leaves at the last turn, the episode is terminated, not truncated."""
        turn = await self.user.next_turn(state.scenario, state.history, state.metadata["user"])
        metadata = {**state.metadata, "user": turn.memory}
        if turn.content is None:
            return StepResult(state=state.after(done=True, metadata=metadata), response=None, terminated=True)
        if state.turn_count >= self.max_turns:
            return StepResult(state=state.after(done=True, metadata=metadata), response=None, truncated=True)
        response = Message(role="user", content=turn.content)
        return StepResult(state=state.after(response, metadata=metadata), response=response)

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario that the user cannot play."""
        self.user.check(scenario)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """A deep copy, because a state has everything of its episode."""
        return copy.deepcopy(state)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest of the world, the user's state, what else the metadata keep, and the last message.

        None if the user's state is unknown (`User.state`), or if a subclass keeps something that is not JSON.
        """
        user = self.user.state(state.scenario, state.metadata["user"]) if "user" in state.metadata else None
        if user is None:
            return None
        try:
            return world_digest(state, user, self._other_state(state))
        except (TypeError, ValueError, RecursionError):
            return None

    def _other_state(self, state: EnvironmentState) -> dict[str, Any]:
        """Metadata that decide how an episode goes on, without the user's."""
        return {name: value for name, value in state.metadata.items() if name != "user"}

    @property
    def gives_states(self) -> bool:
        """True if the user has a state, or if a subclass overrides `state_digest`."""
        overrides = type(self).state_digest is not ConversationEnvironment.state_digest
        return overrides or type(self.user).state is not User.state

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """Outcome from the user's checks. None if the user makes none, as a script, and no part of success is open.

        Checks of a user cover communicated facts. Other parts of the scenario's success are not verified here.
        """
        checks = self.user.verify(state.scenario, state.history, state.metadata["user"])
        unjudged = _unjudged(state.scenario.expected, checked=bool(checks))
        return Outcome.of(checks, unjudged=unjudged) if checks or unjudged else None

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True if the user makes checks, or a judge judges the scenario's assertions, and no part stays open.

        If a subclass overrides `verify`, it has to override this method too.
        """
        if type(self).verify is not ConversationEnvironment.verify:
            return Environment.can_verify(self, scenario, judged=judged)
        checked = self.user.has_checks(scenario)
        return is_verified(checked=checked, unjudged=_unjudged(scenario.expected, checked=checked), judged=judged)

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Hold the user's resources."""
        async with self.user.serve(concurrency=concurrency):
            yield


def _unjudged(expected: Expected, *, checked: bool) -> tuple[str, ...]:
    """Parts of success that a conversation leaves open. If the user makes checks, they cover communicated facts."""
    judged = {"COMMUNICATE"} if checked else set()
    if expected.reward_basis is None:
        judged |= {"DB", "COMMUNICATE"}
    return tuple(part for part in expected.basis if part not in judged)


def is_verified(*, checked: bool, unjudged: Collection[str], judged: bool) -> bool:
    """Return True if there is a check, or a judge's verdict, and no part of success stays unjudged."""
    open_parts = {*unjudged} - ({NL_ASSERTION} if judged else set())
    return not open_parts and (checked or bool(unjudged))
