"""Environment whose episodes are games in texts: the base of gymnasium_text, textarena and textworld.

A subclass starts the game of a scenario. This module keeps the conversation, the sum of the rewards and the limit of
turns, and it refuses a scenario whose package makes another world now than when the scenario was generated.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from grpo.agents.tools import call_on_thread
from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome


class NoWorldError(DataError):
    """The game exists, but this seed makes no world of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameTurn:
    """Answer of a game to one action."""

    text: str
    """Text that the agent reads next. It reads none if the game is over."""
    reward: float = 0.0
    """Reward of this turn."""
    over: bool = False
    """True if the game ended by itself."""
    cut_off: bool = False
    """True if a limit of the game ended it."""


class TextGame(ABC):
    """One episode of a game in texts."""

    @abstractmethod
    def step(self, action: str) -> GameTurn:
        """Take a text as the action. A text that is not an action is answered in words."""

    @property
    @abstractmethod
    def success(self) -> bool | None:
        """True if the game is won so far. None if the game does not tell."""

    @abstractmethod
    def state_digest(self) -> str | None:
        """Digest of all that decides how the game goes on, without the number of turns. None if the game has none."""

    def copied(self) -> Self:
        """Copy that can be played on without a change of this game."""
        return copy.deepcopy(self)


class TextGameEnvironment(Environment):
    """One game per episode, see the module. `max_turns` turns of the agent cut it off.

    Each step works on a copy of the game, so that the state before it can be continued in another way.
    """

    def __init__(self, scenarios: Iterable[ScenarioLike] = (), max_turns: int = 20, *, system_prompt: str = "") -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.system_prompt = system_prompt

    @abstractmethod
    def start(self, scenario: Scenario) -> tuple[TextGame, str]:
        """Start the game of a scenario. Returns it with its first text.

        Raises `DataError` if the scenario names no game that can be made.
        """

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the game's first text. The scenario's own seed makes the game."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        game, text = await call_on_thread(self._checked_start, scenario)  # some games take long to make
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=text),),
            metadata={"game": game, "reward": 0.0},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Take the agent's text as the action."""
        # on a thread, because a game that hangs must end its episode only
        game, turn = await call_on_thread(_played, state.metadata["game"], action.content)
        total = state.metadata["reward"] + turn.reward
        state = state.after(action, turn_count=state.turn_count + 1, metadata={"game": game, "reward": total})
        if turn.over or turn.cut_off:
            return StepResult(
                state=state.after(done=True), response=None, terminated=turn.over, truncated=not turn.over
            )
        cut = state.turn_count >= self.max_turns
        response = Message(role="user", content=turn.text)
        return StepResult(state=state.after(response, done=cut), response=response, truncated=cut)

    def fork(self, state: EnvironmentState) -> EnvironmentState:
        """The state itself, because each step works on a copy of the game."""
        return state

    def verify(self, state: EnvironmentState) -> Outcome:
        """Reward of the episode, and its success if the game tells it."""
        game, reward = state.metadata["game"], state.metadata["reward"]
        checks = {} if game.success is None else {"is_success": game.success}
        saved = {"return": reward, "digest": game.state_digest()}
        return Outcome(success=game.success, checks=checks, state=saved, reward=reward)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest of the game's state, or None if the game gives none."""
        digest: str | None = state.metadata["game"].state_digest()
        return digest

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True, because each game tells whether it is won."""
        return True

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario if its game cannot be made, or starts from another world than when it was generated."""
        await call_on_thread(self._checked_start, scenario)

    def _checked_start(self, scenario: Scenario) -> tuple[TextGame, str]:
        game, text = self.start(scenario)
        expected, digest = scenario.world.get("digest"), game.state_digest()
        if expected is not None and digest != expected:
            raise DataError(
                f"scenario {scenario.id} starts from another world than when it was generated (digest {digest}, then "
                f"{expected}), because the package that makes it has changed. Generate the scenarios again, or install "
                "the package's earlier release"
            )
        return game, text


def _played(game: TextGame, action: str) -> tuple[TextGame, GameTurn]:
    """Copy of a game after an action, and its answer."""
    game = game.copied()
    return game, game.step(action)


def world_of(scenario: Scenario, name: str, example: str) -> tuple[str, Mapping[str, Any], int]:
    """Name of the game, its options and the seed of a scenario. Raises `DataError` if name or seed is missing."""
    world = scenario.world
    if not isinstance(world.get(name), str) or type(world.get("seed")) is not int:
        raise DataError(
            f'scenario {scenario.id}: world needs {name} and seed, {{"{name}": "{example}", "seed": 17}}, got '
            f"{str(dict(world))[:100]}"
        )
    return world[name], world.get("options", {}), world["seed"]
