"""Who talks to the agent: a script, or somebody with a goal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario


class SimulatedUserError(Exception):
    """The simulated user failed, not the agent: the episode is the world's failure and gets no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """What the user says, and what is remembered for the next time."""

    words: str | None
    """None when the user leaves."""
    memory: Mapping[str, Any] = field(default_factory=dict)


class User(ABC):
    """One instance serves many conversations at once; what belongs to one of them is its memory."""

    @abstractmethod
    async def open(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """The first words of the conversation."""

    @abstractmethod
    async def answer(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """The answer to the agent's words, the last of `history`."""

    def check(self, scenario: Scenario) -> None:
        """Raise `DataError` for a scenario that this user cannot play; by default all can be played."""
        return

    def checks(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> dict[str, bool]:
        """Findings about a finished conversation that this user can make; none by default."""
        return {}

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """See `Environment.serve`."""
        yield


class ScriptedUser(User):
    """User turn k is `user_responses[k]`, whatever the agent replies; the user leaves when the script ends."""

    def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without a script."""
        if not scenario.user_responses:
            raise DataError(
                f"scenario {scenario.id} has a goal but no script; the conversation environment plays user_responses: "
                "use the environment simulated_user"
            )

    async def open(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """Say the first line."""
        self.check(scenario)
        return UserTurn(words=scenario.user_responses[0], memory={"lines": 1})

    async def answer(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """Say the next line."""
        lines = memory["lines"]
        words = scenario.user_responses[lines] if lines < len(scenario.user_responses) else None
        return UserTurn(words=words, memory={"lines": lines + 1})
