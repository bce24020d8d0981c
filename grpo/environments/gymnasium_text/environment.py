"""Environments of Gymnasium with texts as observations and actions.

A scenario's world names the environment, its options and the seed, and holds a digest of the resulting world:

    world    {"id": "BabyAI-GoToLocal-v0", "seed": 17, "digest": "5d0c…"}
    user     go to the red ball. Actions: left, right, … You see: red ball 2 ahead 1 left.
    agent    left
    user     You see: red ball 1 ahead 2 left.

Gymnasium's environment ends the episode and gives its reward, the sum over all steps. If it refuses an action, the
agent gets the reason in words, and the world does not change, but the turn counts. `MinigridText` shows Minigrid's
environments. Any other environment needs `gymnasium.spaces.Text` for both spaces, and `info["is_success"]` if success
has to be verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from grpo.environments.gymnasium_text.minigrid_text import MinigridText
from grpo.environments.text_game import GameTurn, TextGame, TextGameEnvironment, world_of
from grpo.errors import DataError
from grpo.scenario import Scenario

# after the import of the view, because its error names the extra
import gymnasium  # isort: skip
from minigrid.minigrid_env import MiniGridEnv  # isort: skip

TextEnv: TypeAlias = "gymnasium.Env[str, str]"


class GymnasiumTextEnvironment(TextGameEnvironment):
    """One of Gymnasium's environments per episode, see the module. `max_turns` turns of the agent cut it off."""

    def start(self, scenario: Scenario) -> tuple[TextGame, str]:
        """Make the environment and reset it with the scenario's seed."""
        env, seed = _make(scenario)
        observation, info = env.reset(seed=seed)
        return GymnasiumGame(env, info.get("is_success")), observation

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True for minigrid's environments, None for others, because only an episode shows it."""
        return True if isinstance(_make(scenario)[0], MinigridText) else None


class GymnasiumGame(TextGame):
    """An environment of Gymnasium in texts, after its reset."""

    def __init__(self, env: TextEnv, success: bool | None) -> None:
        self._env = env
        self._success = success

    def step(self, action: str) -> GameTurn:
        """Step of the environment, or its reason if it refuses the action."""
        try:
            observation, reward, terminated, truncated, info = self._env.step(action)
        except gymnasium.error.InvalidAction as refusal:
            return GameTurn(text=str(refusal))
        self._success = info.get("is_success")
        return GameTurn(text=observation, reward=float(reward), over=terminated, cut_off=truncated)

    @property
    def success(self) -> bool | None:
        """The last `info["is_success"]`, None if the environment gives none."""
        return None if self._success is None else bool(self._success)

    def state_digest(self) -> str | None:
        """Digest of the environment's state, or None if the environment gives none."""
        return env_digest(self._env)


def env_digest(env: TextEnv) -> str | None:
    """Digest of an environment's state by its `state_digest()`, or None if it has no such method."""
    digest: str | None = env.get_wrapper_attr("state_digest")() if env.has_wrapper_attr("state_digest") else None
    return digest


def make_text_env(id: str, options: Mapping[str, Any]) -> TextEnv:
    """Make an environment of Gymnasium by its id, in texts.

    Raises `gymnasium.error.Error` or `TypeError` if it cannot be made, and `DataError` if it is not in texts.
    """
    env = gymnasium.make(id, disable_env_checker=True, **options)
    if isinstance(env.unwrapped, MiniGridEnv):
        return MinigridText(env)
    for name, space in (("observation", env.observation_space), ("action", env.action_space)):
        if not isinstance(space, gymnasium.spaces.Text):
            raise DataError(
                f"environment {id}: its {name} space is {type(space).__name__}, and an agent reads and writes texts. "
                "Register it with a wrapper that has gymnasium.spaces.Text as its spaces"
            )
    return env


def _make(scenario: Scenario) -> tuple[TextEnv, int]:
    """Environment and seed of a scenario."""
    id, options, seed = world_of(scenario, "id", "BabyAI-GoToObj-v0")
    try:
        return make_text_env(id, options), seed
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
        raise DataError(f"scenario {scenario.id}: environment {id} cannot be made: {error}") from error
