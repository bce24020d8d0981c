"""A user with a goal, facts that must be asked for, and only so much patience.

Rules decide what happens: what is told when, which turn helped, when the user leaves. The words come from phrases
drawn by the seed, or from a model; words of a model that a user would not say are the user's fault, not the agent's.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from grpo.environments.users.goal import KNOWN, Goal, questions, read_goal
from grpo.environments.users.user import ScriptedUser, SimulatedUserError, User, UserTurn
from grpo.environments.users.user_model import END, UserModel
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.scenario import Scenario

_TELLS = ("My {name} is {value}.", "The {name} is {value}.", "It is {value}.")
_INSISTS = ("That does not help me.", "I still need help.", "That is not what I asked for.")
_GOES_ON = ("Thanks. And then?", "I see. Please go on.", "All right, what next?")
_OUT_OF_ROLE = re.compile(
    r"^\s*(?:agent|assistant|representative|system)\s*:|<tool_call>|\bas an ai\b|\blanguage model\b|"
    r"\bhow (?:can|may) i (?:help|assist) you\b|\bthank you for (?:contacting|calling)\b",
    re.IGNORECASE,
)


class SimulatedUser(User):
    """Says what it wants, tells a fact when it is asked for it, and leaves satisfied or out of patience.

    A turn of the agent helps when it asks for a fact that was not told yet, or tells one of the scenario's
    `expected.facts`. After `patience` turns that did not help the user leaves. It is satisfied when all expected
    facts were told; where none is expected, when all of its own facts were asked for and the agent asks nothing more.

    Raises `SimulatedUserError` where a model's words are empty, are not a user's, or tell a hidden fact unasked.
    """

    def __init__(self, *, patience: int = 3, voice: UserModel | None = None) -> None:
        self.patience = patience
        self.voice = voice

    def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without a goal."""
        if not scenario.goal.strip():
            raise DataError(f"scenario {scenario.id} has no goal for a simulated user; give it one, or play its script")

    async def open(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """Say what the user wants."""
        self.check(scenario)
        goal = read_goal(scenario.goal)
        memory = {"seed": seed or 0, "turn": 0, "told": (), "heard": (), "unhelpful": 0, "left": None}
        if self.voice is None:
            return UserTurn(words=goal.opening, memory=memory)
        return UserTurn(words=await self._voiced(goal, scenario, (), memory, allowed=()), memory=memory)

    async def answer(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """Answer what was asked, insist, or leave."""
        goal, reply = read_goal(scenario.goal), history[-1].content
        asked = goal.asked(reply)
        new = [name for name in asked if name not in memory["told"]]
        heard = [fact for fact in scenario.expected.facts if fact.casefold() in reply.casefold()]
        helped = bool(new) or not set(heard) <= set(memory["heard"])
        memory = {
            **memory,
            "turn": memory["turn"] + 1,
            "told": (*memory["told"], *new),
            "heard": (*memory["heard"], *(fact for fact in heard if fact not in memory["heard"])),
            "unhelpful": memory["unhelpful"] + (not helped),
        }
        if self._satisfied(goal, scenario, memory, reply):
            return UserTurn(words=None, memory={**memory, "left": "satisfied"})
        if memory["unhelpful"] >= self.patience:
            return UserTurn(words=None, memory={**memory, "left": "patience"})
        if self.voice is None:
            return UserTurn(words=_phrase(goal, asked, helped, memory), memory=memory)
        words = await self._voiced(goal, scenario, history, memory, allowed=memory["told"])
        if END in words:
            return UserTurn(words=None, memory={**memory, "left": "satisfied"})
        return UserTurn(words=words, memory=memory)

    def checks(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> dict[str, bool]:
        """Whether the user left satisfied, and whether all that had to be told was told."""
        told = set(memory["heard"]) >= set(scenario.expected.facts)
        return {"satisfied": memory["left"] == "satisfied", "facts_communicated": told}

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """Keep the voice's connection."""
        if self.voice is None:
            yield
            return
        async with self.voice.serve(concurrency=concurrency):
            yield

    def _satisfied(self, goal: Goal, scenario: Scenario, memory: Mapping[str, Any], reply: str) -> bool:
        if scenario.expected.facts:
            return set(memory["heard"]) >= set(scenario.expected.facts)
        return self.voice is None and set(memory["told"]) >= set(goal.facts) and not questions(reply)

    async def _voiced(
        self,
        goal: Goal,
        scenario: Scenario,
        history: Sequence[Message],
        memory: Mapping[str, Any],
        *,
        allowed: Sequence[str],
    ) -> str:
        """The model's words, which must be those of a user who was asked for the `allowed` facts alone."""
        assert self.voice is not None
        words = await self.voice.say(scenario.goal, history, seed=memory["seed"] + memory["turn"])
        place = f"scenario {scenario.id}: the simulated user's model, turn {memory['turn']}:"
        if not words.strip():
            raise SimulatedUserError(f"{place} an empty reply")
        if _OUT_OF_ROLE.search(words):
            raise SimulatedUserError(f"{place} out of its role: {words[:80]!r}")
        for name, value in goal.facts.items():
            if name not in allowed and value.casefold() in words.casefold():
                raise SimulatedUserError(f"{place} told the {name} unasked")
        return words


class ScenarioUser(User):
    """Plays the script of a scenario that has one, and the goal of one that has not."""

    def __init__(self, simulated: SimulatedUser) -> None:
        self._scripted, self._simulated = ScriptedUser(), simulated

    def _of(self, scenario: Scenario) -> User:
        return self._scripted if scenario.user_responses else self._simulated

    def check(self, scenario: Scenario) -> None:
        """See `User.check`."""
        self._of(scenario).check(scenario)

    async def open(self, scenario: Scenario, *, seed: int | None) -> UserTurn:
        """See `User.open`."""
        return await self._of(scenario).open(scenario, seed=seed)

    async def answer(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> UserTurn:
        """See `User.answer`."""
        return await self._of(scenario).answer(scenario, history, memory)

    def checks(self, scenario: Scenario, history: Sequence[Message], memory: Mapping[str, Any]) -> dict[str, bool]:
        """See `User.checks`."""
        return self._of(scenario).checks(scenario, history, memory)

    @asynccontextmanager
    async def serve(self, *, concurrency: int) -> AsyncIterator[None]:
        """See `User.serve`."""
        async with self._simulated.serve(concurrency=concurrency):
            yield


def _phrase(goal: Goal, asked: Sequence[str], helped: bool, memory: Mapping[str, Any]) -> str:
    """What a user without a model says: what was asked for, or what it still wants."""
    rng = random.Random(f"{memory['seed']}/{memory['turn']}")
    if asked:
        facts = [(name, goal.facts[name]) for name in asked]
        return " ".join(
            value if name == KNOWN else rng.choice(_TELLS).format(name=name, value=value) for name, value in facts
        )
    return rng.choice(_GOES_ON) if helped else f"{rng.choice(_INSISTS)} {goal.opening}"
