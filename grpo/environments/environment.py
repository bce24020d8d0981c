"""Environment interface: reset to a scenario, step by messages, verify the outcome."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.errors import ConfigError
from grpo.messages import Message, Tool
from grpo.scenario import Scenario
from grpo.trajectories import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentState:
    """State of an episode. `step` returns a new state and never changes the state that it gets."""

    scenario: Scenario
    episode_id: str = ""
    """Id of the episode: scenario and seed."""
    context: str = ""
    """Text under the agent's system prompt for this episode: background, a policy text, tools."""
    history: tuple[Message, ...] = ()
    turn_count: int = 0
    """Agent turns so far."""
    done: bool = False
    world: Mapping[str, Any] = field(default_factory=dict)
    """State that the agent acts on and that success is verified on."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """State of the environment outside the world, such as the user's state."""

    def after(self, *messages: Message, **changes: Any) -> EnvironmentState:
        """Copy with these messages appended to the history."""
        return replace(self, history=(*self.history, *messages), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of a step: `terminated` if the episode ended by itself, `truncated` if it was cut off.

    Unpacks as `state, response, reward, done`.
    """

    state: EnvironmentState
    response: Message | None
    """Message of the user or the tool, or None if the episode is over."""
    reward: float | None = None
    """Reward of this turn, or None if the environment gives none."""
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.state, self.response, self.reward, self.terminated or self.truncated))


class Environment(ABC):
    """Base of all environments. One instance serves many episodes at once, so an episode keeps all in its state."""

    tools: tuple[Tool, ...] = ()
    scenarios: tuple[Scenario, ...] = ()
    """Scenarios that `reset()` samples from. Empty if the caller passes a scenario for each episode."""
    system_prompt: str = ""

    @abstractmethod
    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start an episode. The returned history ends with the user's first message.

        If no scenario is given, the environment samples one of its own, by the seed if one is given.
        """

    @abstractmethod
    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Apply the agent's message."""

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """Copy of a state from which another episode can go on, whatever happens to the first one.

        Branching rollouts (`rollout.trees`) call it. If a state refers to nothing outside, such as a session of a
        server, return `copy.deepcopy(state)`. By default it raises `ConfigError`, because a copy that refers to the
        same session would be no other episode.
        """
        raise ConfigError(
            f"rollout.trees: {type(self).__name__} does not copy its states. Write fork(self, state) for a class of "
            "your own, which may be copy.deepcopy(state) if a state refers to nothing outside, or leave trees out"
        )

    @property
    def forks(self) -> bool:
        """True if the environment overrides `fork`."""
        return type(self).fork is not Environment.fork

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """Verify the final state. Returns None if nothing can be verified."""
        return None

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome | None:
        """Outcome of an episode that has ended, by default the result of `verify`.

        If a limit of tokens ended the episode before `step` got the agent's last message, `cut_off` is this message.
        """
        return self.verify(state)

    async def abandon(self, state: EnvironmentState) -> None:
        """Release what an episode holds, such as a session on a server, if it fails and `conclude` is not called."""
        return

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest of all that decides how an episode goes on from here, or None if the environment has no digests.

        `credit_assignment: state` compares the turns of a scenario's episodes that were taken in states with the same
        digest. The number of turns is not part of the digest, so that an episode can come back to a state.
        """
        return None

    @property
    def gives_states(self) -> bool:
        """True if `state_digest` gives digests. By default, if the environment overrides it."""
        return type(self).state_digest is not Environment.state_digest

    async def check(self, scenario: Scenario) -> None:
        """Raise `DataError` for a scenario that this environment cannot play. Called before any episode."""
        return

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """Return True if an episode of this scenario ends with a success or a failure, False if it does not.

        None means that only an episode shows it. If `judged` is True, a judge completes outcomes with assertions.
        Preflight calls this before any episode, because gates and rewards that need an outcome would otherwise fail
        after the training.
        """
        kind = type(self)
        verifies = kind.verify is not Environment.verify or kind.conclude is not Environment.conclude
        return None if verifies else False

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Hold resources of the episodes, such as a connection, while they run inside the running event loop."""
        yield


class SingleTurnEnvironment(Environment):
    """Wrapper that ends each episode of an environment after the agent's first turn."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.tools, self.system_prompt = environment.tools, environment.system_prompt
        self.scenarios = environment.scenarios

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """See the wrapped environment."""
        return await self.environment.reset(scenario, seed=seed)

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Apply the reply and end the episode without an answer."""
        result = await self.environment.step(state, action)
        return replace(result, state=replace(result.state, done=True), response=None, terminated=True, truncated=False)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """See the wrapped environment."""
        return self.environment.state_digest(state)

    @property
    def gives_states(self) -> bool:
        """See the wrapped environment."""
        return self.environment.gives_states

    async def check(self, scenario: Scenario) -> None:
        """See the wrapped environment."""
        await self.environment.check(scenario)

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """See the wrapped environment."""
        return self.environment.can_verify(scenario, judged=judged)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """See the wrapped environment."""
        return self.environment.fork(state)

    @property
    def forks(self) -> bool:
        """See the wrapped environment."""
        return self.environment.forks

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """See the wrapped environment."""
        return self.environment.verify(state)

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome | None:
        """See the wrapped environment."""
        return await self.environment.conclude(state, cut_off)


def world_digest(state: EnvironmentState, *parts: Any) -> str:
    """Digest of the world, other parts of the state and the last message, 16 hex digits. All must be valid JSON."""
    last = state.history[-1]
    text = json.dumps([state.world, *parts, last.role, last.content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def episode_id(scenario: Scenario, seed: int | None) -> str:
    """Id of the episode of this scenario and seed."""
    return scenario.id if seed is None else f"{scenario.id}/{seed}"


def as_flag(value: Any) -> bool | None:
    """The truth value that a user's code returned: of Python or NumPy, or 0 or 1. None for anything else.

    For Python every text is true, also "false", so that a text must not be read by `bool`.
    """
    is_number = isinstance(value, (int, float)) or type(value).__module__ == "numpy"
    return bool(value) if is_number and getattr(value, "shape", ()) == () and value in (0, 1) else None
