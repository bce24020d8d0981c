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

import copy
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.environments.gymnasium_text.minigrid_text import MinigridText
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

# after the import of the view, because its error names the extra
import gymnasium  # isort: skip
from minigrid.minigrid_env import MiniGridEnv  # isort: skip

TextEnv: TypeAlias = "gymnasium.Env[str, str]"


class GymnasiumTextEnvironment(Environment):
    """One of Gymnasium's environments per episode, see the module. `max_turns` turns of the agent cut it off.

    Each step works on a copy of the environment, so that the state before it can be continued in another way.
    """

    def __init__(self, scenarios: Iterable[ScenarioLike] = (), max_turns: int = 20, *, system_prompt: str = "") -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.system_prompt = system_prompt

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the environment's first observation, with the scenario's seed."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        env, observation, info = _start(scenario)
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=observation),),
            metadata={"env": env, "reward": 0.0, "is_success": info.get("is_success")},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Take the agent's text as the action."""
        state = state.after(action, turn_count=state.turn_count + 1)
        env: TextEnv = copy.deepcopy(state.metadata["env"])
        try:
            observation, reward, terminated, truncated, info = env.step(action.content)
        except gymnasium.error.InvalidAction as refusal:
            return self._answer(state, str(refusal))
        total = state.metadata["reward"] + float(reward)
        state = state.after(metadata={"env": env, "reward": total, "is_success": info.get("is_success")})
        if terminated or truncated:
            return StepResult(
                state=state.after(done=True), response=None, terminated=terminated, truncated=not terminated
            )
        return self._answer(state, observation)

    def _answer(self, state: EnvironmentState, text: str) -> StepResult:
        cut = state.turn_count >= self.max_turns
        response = Message(role="user", content=text)
        return StepResult(state=state.after(response, done=cut), response=response, truncated=cut)

    def verify(self, state: EnvironmentState) -> Outcome:
        """Reward of the episode, and its success if the environment reports it."""
        reward, success = state.metadata["reward"], state.metadata["is_success"]
        checks = {} if success is None else {"is_success": bool(success)}
        saved = {"return": reward, "digest": state_digest(state.metadata["env"])}
        return Outcome(success=checks.get("is_success"), checks=checks, state=saved, reward=reward)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest of the environment's state, or None if the environment gives none."""
        return state_digest(state.metadata["env"])

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True for minigrid's environments, None for others, because only an episode shows it."""
        return True if isinstance(_make(scenario), MinigridText) else None

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario if its environment cannot be made, is not in texts, or starts from another world."""
        _start(scenario)


def state_digest(env: TextEnv) -> str | None:
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


def _make(scenario: Scenario) -> TextEnv:
    world = scenario.world
    if not isinstance(world.get("id"), str) or type(world.get("seed")) is not int:
        raise DataError(
            f'scenario {scenario.id}: world needs the id of an environment and a seed, {{"id": "BabyAI-GoToObj-v0", '
            f'"seed": 17}}, got {str(dict(world))[:100]}'
        )
    try:
        return make_text_env(world["id"], world.get("options", {}))
    except (gymnasium.error.Error, TypeError, ModuleNotFoundError) as error:
        raise DataError(f"scenario {scenario.id}: environment {world['id']} cannot be made: {error}") from error


def _start(scenario: Scenario) -> tuple[TextEnv, str, dict[str, Any]]:
    """Environment, first observation and info of a scenario. Raises `DataError` if the world has another digest."""
    env = _make(scenario)
    observation, info = env.reset(seed=scenario.world["seed"])
    expected, digest = scenario.world.get("digest"), state_digest(env)
    if expected is not None and digest != expected:
        raise DataError(
            f"scenario {scenario.id} starts from another world than when it was generated (digest {digest}, then "
            f"{expected}), because the package that makes {scenario.world['id']} has changed. Generate the scenarios "
            "again, or install its earlier release"
        )
    return env, observation, info
