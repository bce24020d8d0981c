"""Adapter of environments in Gymnasium's form: `reset` and `step` with texts as observations and actions.

    class Counter:
        def reset(self, *, seed=None, options=None) -> tuple[str, dict]     the options are the scenario's world
        def step(self, action: str) -> tuple[str, float, bool, bool, dict]  observation, reward, ended, cut off, info

Gymnasium's five values, the four of Gym, and an object with `observation`, `reward` and `done`, as OpenEnv's clients
return it, are read. Both methods may be async. An observation is a text, or an object or dict with one text under a
usual name. If `step` takes a class with one text, such as OpenEnv's actions, the agent's text is put into it.

If the class has a method `state_digest() -> str`, its texts are the digests of the states (`credit_assignment: state`).

Each episode has its own instance. All episodes of a scenario are reset with one seed, so that they start alike. Other
spaces than texts, tools and several agents are not covered, and are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo.agents.tools import call_on_thread
from grpo.environments.environment import Environment, EnvironmentState, StepResult, as_flag, episode_id
from grpo.errors import ConfigError, DataError, OutcomeError
from grpo.messages import Message
from grpo.object_state import save_state
from grpo.scenario import Scenario
from grpo.scenarios.columns import accepted, columns
from grpo.trajectories import Outcome
from grpo.user_numbers import finite_number

_TEXTS = ("text", "message", "observation", "content", "prompt", "output", "result")
"""Names of the text in an observation that is an object."""
_SUCCESSES = ("is_success", "success")
"""Keys of Gymnasium's `info` that tell whether the task is solved."""


class GymEnvironment(Environment):
    """Environment with an instance of a class in Gymnasium's form per episode.

    An episode ends when `step` says so, and is cut off after `max_turns` turns of the agent. The reward of its outcome
    is the sum of the rewards of all steps. The steps themselves have none, because it would count twice. Success is the
    last `info["is_success"]` or `info["success"]`. If there is none, an episode with at least `success_reward` is a
    success.

    Raises `ConfigError` if the class has no `reset` or `step`, or if `step` takes an action that is not a text.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        system_prompt: str = "",
        max_turns: int = 20,
        success_reward: float | None = None,
    ) -> None:
        self.factory = factory
        self.system_prompt = system_prompt
        self.max_turns = max_turns
        self.success_reward = success_reward
        probe = factory()
        self._name = type(probe).__name__
        for method in ("reset", "step"):
            if not callable(getattr(probe, method, None)):
                raise ConfigError(f"{self._name} has no method {method}. Write reset(self) and step(self, action: str)")
        self._action = _action_maker(self._name, probe.step)
        self._has_digests = callable(getattr(probe, "state_digest", None))
        close = getattr(probe, "close", None)
        if callable(close) and not inspect.iscoroutinefunction(close):
            close()

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the text that the instance's `reset` returns. The scenario's own seed makes the start."""
        if scenario is None:
            raise DataError(f"environment {self._name} has no scenarios. Pass a scenario to reset")
        instance = self.factory()
        given = {**columns(scenario), "seed": _seed(scenario), "options": dict(scenario.world)}
        try:
            returned = await _call(instance.reset, **accepted(instance.reset, given))
            observation = returned[0] if isinstance(returned, tuple) else _attribute(returned, "observation", returned)
            opening = Message(role="user", content=self._text(observation, "reset"))
        except BaseException:  # also of the time limit, which cancels
            await _close(instance)
            raise
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(opening,),
            metadata={"instance": instance, "reward": 0.0, "success": None},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Give the agent's text to the instance."""
        instance = state.metadata["instance"]
        observation, reward, ended, cut_off, info = self._values(
            await _call(instance.step, self._action(action.content))
        )
        success = next(
            (self._flag(info[name], f"info[{name!r}]") for name in _SUCCESSES if info.get(name) is not None),
            state.metadata["success"],
        )
        kept = {"instance": instance, "reward": state.metadata["reward"] + reward, "success": success}
        state = state.after(action, turn_count=state.turn_count + 1, metadata=kept)
        if ended or cut_off:
            return StepResult(state=state.after(done=True), response=None, terminated=ended, truncated=not ended)
        cut = state.turn_count >= self.max_turns
        response = Message(role="user", content=self._text(observation, "step"))
        return StepResult(state=state.after(response, done=cut), response=response, truncated=cut)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest by the instance's own `state_digest`, or None if it has no such method."""
        digest: str | None = state.metadata["instance"].state_digest() if self._has_digests else None
        return digest

    @property
    def gives_states(self) -> bool:
        """True if the class has a method `state_digest`."""
        return self._has_digests

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome:
        """Sum of the rewards, and the attributes of the instance. The instance is closed if it has `close`."""
        instance, reward, success = (state.metadata[name] for name in ("instance", "reward", "success"))
        saved = save_state(instance)
        await _close(instance)
        if success is None:
            return Outcome.of_reward(reward, success_reward=self.success_reward, state=saved)
        return Outcome(success=success, checks={"is_success": success}, state=saved, reward=reward)

    async def abandon(self, state: EnvironmentState) -> None:
        """Close the instance of a failed episode if it has `close`."""
        await _close(state.metadata["instance"])

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True if there is a `success_reward`. None otherwise, because only `info` of an episode shows it."""
        return True if self.success_reward is not None else None

    def _values(self, returned: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Observation, reward, end, cut and info of what `step` returned."""
        if isinstance(returned, tuple) and len(returned) in (4, 5):
            observation, reward, ended, *cut, info = returned
        elif not isinstance(returned, tuple) and _has(returned, "observation") and _has(returned, "done"):
            names = ("observation", "reward", "done")
            observation, reward, ended = (_attribute(returned, name, None) for name in names)
            cut, info = [], _attribute(returned, "info", None) or _attribute(returned, "metadata", None)
        else:
            shown = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
            raise DataError(
                f"{self._name}.step returned {shown}. Return observation, reward, terminated, truncated and info"
            )
        number = 0.0 if reward is None else finite_number(reward)
        if number is None:
            raise OutcomeError(f"{self._name}.step returned the reward {reward!r}. Return a finite number")
        is_over, is_cut = self._flag(ended, "the end"), bool(cut) and self._flag(cut[0], "the cut")
        return observation, number, is_over, is_cut, info if isinstance(info, Mapping) else {}

    def _flag(self, value: Any, what: str) -> bool:
        flag = False if value is None else as_flag(value)
        if flag is None:
            raise OutcomeError(f"{self._name}.step returned {value!r:.200} as {what}. Return True or False")
        return flag

    def _text(self, observation: Any, method: str) -> str:
        if isinstance(observation, str):
            return observation
        for name in _TEXTS:
            if isinstance(text := _attribute(observation, name, None), str):
                return text
        raise DataError(
            f"{self._name}.{method} returned an observation of type {type(observation).__name__}, and an agent reads "
            f"texts. Return a text, or an object with a text under {', '.join(_TEXTS)}"
        )


def _seed(scenario: Scenario) -> int:
    """Seed of the scenario's world, or one of its id."""
    seed = scenario.world.get("seed")
    return seed if type(seed) is int else int(hashlib.sha256(scenario.id.encode()).hexdigest()[:8], 16)


async def _call(method: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
    """Call a method on a thread, because it may wait for a server, and await its result if it is awaitable."""
    returned = await call_on_thread(method, *given, **arguments)
    return await returned if inspect.isawaitable(returned) else returned


async def _close(instance: Any) -> None:
    if callable(close := getattr(instance, "close", None)):
        await _call(close)


def _has(value: Any, name: str) -> bool:
    return name in value if isinstance(value, Mapping) else hasattr(value, name)


def _attribute(value: Any, name: str, default: Any) -> Any:
    """An entry of a mapping, or an attribute of an object."""
    return value.get(name, default) if isinstance(value, Mapping) else getattr(value, name, default)


def _action_maker(owner: str, step: Callable[..., Any]) -> Callable[[str], Any]:
    """Function that makes the argument of `step` from a text: the text itself, or an object with the text."""
    try:
        parameters = list(inspect.signature(step, eval_str=True).parameters.values())
    except (NameError, ValueError):  # an annotation that exists only for type checkers, or a builtin
        return lambda text: text
    if not parameters:
        raise ConfigError(f"{owner}.step takes no action. Write step(self, action: str)")
    kind = parameters[0].annotation
    fields = _fields(kind)
    if fields is None:
        return lambda text: text
    texts = [name for name, (annotation, _) in fields.items() if annotation in (str, "str")]
    needed = [name for name, (_, required) in fields.items() if required and name not in texts[:1]]
    if not texts or needed:
        raise ConfigError(
            f"{owner}.step takes {kind.__name__} with {', '.join(fields)}, and an agent writes one text. Wrap the "
            "class in one with step(self, action: str)"
        )
    return lambda text: kind(**{texts[0]: text})


def _fields(kind: Any) -> dict[str, tuple[Any, bool]] | None:
    """Fields of a dataclass or a pydantic model, with annotation and whether they are required. Otherwise None."""
    if not isinstance(kind, type):
        return None
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: (field.type, field.default is missing and field.default_factory is missing)
            for field in dataclasses.fields(kind)
            if field.init
        }
    if isinstance(models := getattr(kind, "model_fields", None), Mapping):
        return {name: (field.annotation, field.is_required()) for name, field in models.items()}
    return None
