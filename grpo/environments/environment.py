"""The world that an agent acts in: reset to a scenario, step by messages, verify the outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.messages import Message, Tool
from grpo.scenarios.scenario import Scenario
from grpo.trajectories import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentState:
    """A moment of an episode; `step` returns a new one and never changes the one it was given."""

    scenario: Scenario
    episode_id: str = ""
    """Scenario and seed: what this episode is called wherever it is counted."""
    context: str = ""
    """What the agent is told of this episode under its system prompt: background, a policy text, tools."""
    history: tuple[Message, ...] = ()
    turn_count: int = 0
    """Agent turns so far."""
    done: bool = False
    world: Mapping[str, Any] = field(default_factory=dict)
    """What the agent acts on, and success is judged by."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the environment remembers beside the world, such as what its user has said."""

    def after(self, *messages: Message, **changes: Any) -> EnvironmentState:
        """The state after these messages were said."""
        return replace(self, history=(*self.history, *messages), **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the world answers. Terminated: the episode ended by itself. Truncated: it was cut off.

    Unpacks as `state, response, reward, done`.
    """

    state: EnvironmentState
    response: Message | None
    """The user's or the tool's message; None when the episode is over."""
    reward: float | None = None
    """Reward of this turn; None where the environment gives none."""
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.state, self.response, self.reward, self.terminated or self.truncated))


class Environment(ABC):
    """Base of all environments. One instance serves many episodes at once: the state is all it knows of each."""

    tools: tuple[Tool, ...] = ()
    scenarios: tuple[Scenario, ...] = ()
    """What `reset()` picks from; none where each episode is given its own."""
    system_prompt: str = ""

    @abstractmethod
    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start an episode; the returned history ends with the user's first message.

        Without a scenario the environment picks one of its own, by the seed where there is one.
        """

    @abstractmethod
    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Let the agent's message act on the world."""

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """Judge the final state by what is true in the world; None where nothing can be verified."""
        return None

    async def check(self, scenario: Scenario) -> None:
        """Raise `DataError` for a scenario that cannot be played here; by default all can. Asked before any is."""
        return

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Hold what episodes need, such as a connection, while they are played inside the running event loop."""
        yield


def episode_id(scenario: Scenario, seed: int | None) -> str:
    """What the episode of this scenario and seed is called."""
    return scenario.id if seed is None else f"{scenario.id}/{seed}"
