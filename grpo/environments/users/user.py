"""User interface of a conversation, and users that follow a script."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario


class SimulatedUserError(Exception):
    """The simulated user failed, not the agent, so that the episode counts as failed and gets no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """Message of the user, and its memory for the next turn."""

    content: str | None
    """None when the user leaves."""
    memory: Mapping[str, Any] = field(default_factory=dict)


class User(ABC):
    """Base of all users. One instance serves many conversations at once, so each conversation's state is its memory."""

    @abstractmethod
    async def first_turn(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """Open the conversation."""

    @abstractmethod
    async def next_turn(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """Answer the agent's message, the last of `history`."""

    def check(self, scenario: Scenario) -> None:
        """Raise `DataError` for a scenario that this user cannot play. By default, it can play all of them."""
        return

    def verify(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> dict[str, bool]:
        """Outcome checks of a finished conversation that this user can make. None by default."""
        return {}

    def has_checks(self, scenario: Scenario) -> bool:
        """Return True if `verify` returns checks for this scenario."""
        return type(self).verify is not User.verify

    def state(self, scenario: Scenario, memory: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Part of the memory that decides how this user goes on, as JSON. It takes part in `state_digest`.

        None if the agent's earlier messages decide it as well, which is the default.
        """
        return None

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """See `Environment.serve`."""
        yield


class ScriptedUser(User):
    """User turn k is `user_responses[k]`, whatever the agent replies. The user leaves when the script ends."""

    def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without a script."""
        if not scenario.user_responses:
            raise DataError(
                f"scenario {scenario.id} has a goal but no script. Use the environment simulated_user, because "
                "the conversation environment plays user_responses"
            )

    async def first_turn(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """Send the first line."""
        self.check(scenario)
        return UserTurn(content=scenario.user_responses[0], memory={"lines": 1})

    async def next_turn(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """Send the next line."""
        lines = memory["lines"]
        content = scenario.user_responses[lines] if lines < len(scenario.user_responses) else None
        return UserTurn(content=content, memory={"lines": lines + 1})

    def state(self, scenario: Scenario, memory: Mapping[str, Any]) -> Mapping[str, Any]:
        """Number of lines so far."""
        return memory
