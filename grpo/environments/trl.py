"""Adapter of environments in the form of TRL's `environment_factory`.

    class Wordle:
        def reset(self, **columns) -> str | None     the columns of the scenario; a text is appended to the prompt
        def guess(self, word: str) -> str            each public method is a tool; its docstring describes `Args`
        def get_reward(self) -> float                optional: the reward of the finished episode
        def _state_digest(self) -> str               optional: digest of the state, for `credit_assignment: state`

As in TRL 1.16, results are shown as `str(result)`, and an exception of a method as `{'error': …}`. Each episode has its
own instance. Its attributes are kept for reward functions that read `environments` (`grpo.object_state`). Pictures and
several classes in one run are not covered, and are refused.

https://huggingface.co/docs/trl/openenv
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grpo.agents.tools import call_on_thread
from grpo.environments.environment import Environment, EnvironmentState, StepResult, episode_id
from grpo.errors import ConfigError, DataError, OutcomeError
from grpo.messages import Message, Tool, ToolCall
from grpo.object_state import save_state
from grpo.scenario import Scenario
from grpo.scenarios.columns import accepted, columns
from grpo.trajectories import Outcome
from grpo.user_numbers import finite_number

_RESERVED = ("reset", "get_reward")


class TRLEnvironment(Environment):
    """Environment with an instance of a class of TRL's form per episode.

    An episode ends with the first reply without a tool call, and is cut off after `max_turns` turns of the agent.
    Raises `ConfigError` if the class has no `reset`, or if a tool has no types or no description.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        system_prompt: str = "",
        max_turns: int = 10,
        success_reward: float | None = None,
    ) -> None:
        self.factory = factory
        self.system_prompt = system_prompt
        self.max_turns = max_turns
        self.success_reward = success_reward
        probe = factory()
        self._name = type(probe).__name__
        if not callable(getattr(probe, "reset", None)):
            raise ConfigError(f"{self._name} has no method reset. Write `def reset(self, **kwargs) -> str | None`")
        if success_reward is not None and not hasattr(type(probe), "get_reward"):
            raise ConfigError(
                f"success_reward {success_reward} is compared with the result of get_reward, but {self._name} has no "
                "such method. Write the method, or leave success_reward out"
            )
        self._tool_names = tuple(_tool_names(probe))
        self._has_digests = callable(getattr(probe, "_state_digest", None))
        self.tools = tuple(_describe(self._name, getattr(probe, name)) for name in self._tool_names)

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the scenario's message, followed by the text that the instance's `reset` returns."""
        if scenario is None:
            raise DataError(f"environment {self._name} has no scenarios. Pass a scenario to reset")
        instance = self.factory()
        prompt = [{"role": "user", "content": scenario.user_responses[0]}]
        if scenario.context:
            prompt.insert(0, {"role": "system", "content": scenario.context})
        observation = await _result(instance.reset, {**columns(scenario), "prompt": prompt})
        if not isinstance(observation, str | None):
            raise DataError(
                f"scenario {scenario.id}: {self._name}.reset returned {type(observation).__name__}. Return a text or "
                "None. Images are not supported"
            )
        opening = Message(role="user", content=scenario.user_responses[0] + (observation or ""))
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(opening,),
            metadata={"instance": instance},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Execute the tool calls. A reply without a call ends the episode."""
        state = state.after(action, turn_count=state.turn_count + 1)
        results = [await self._call(state.metadata["instance"], call) for call in action.tool_calls]
        if action.malformed:
            results.append({"error": action.malformed})
        if not results:
            return StepResult(state=replace(state, done=True), response=None, terminated=True)
        response = Message(role="tool", content="\n".join(map(str, results)))
        cut = state.turn_count >= self.max_turns
        return StepResult(state=state.after(response, done=cut), response=response, truncated=cut)

    def state_digest(self, state: EnvironmentState) -> str | None:
        """Digest by the instance's own `_state_digest`, or None if it has no such method."""
        digest: str | None = state.metadata["instance"]._state_digest() if self._has_digests else None
        return digest

    @property
    def gives_states(self) -> bool:
        """True if the class has a method `_state_digest`."""
        return self._has_digests

    async def conclude(self, state: EnvironmentState, cut_off: Message | None = None) -> Outcome:
        """Reward and attributes of the instance."""
        instance = state.metadata["instance"]
        reward = await self._reward(instance)
        return Outcome.of_reward(reward, success_reward=self.success_reward, state=save_state(instance))

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool:
        """True if there is a `success_reward`."""
        return self.success_reward is not None

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario unless it has exactly one user turn, because tool results are the only answers."""
        turns = len(scenario.user_responses)
        if turns != 1:
            raise DataError(
                f"scenario {scenario.id} has {turns} user turns. Environment {self._name} has one, and then the "
                "results of its tools: leave it out, or give it one user_responses"
            )

    async def _call(self, instance: Any, call: ToolCall) -> Any:
        """Result of one call. If it raises, the result is the error, which the model reads."""
        try:
            if call.name not in self._tool_names:
                raise ValueError(f"Tool {call.name} not found.")
            result = await call_on_thread(getattr(instance, call.name), **call.arguments)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 — the model reads a tool's exception
            return {"error": str(error)}

    async def _reward(self, instance: Any) -> float | None:
        if not hasattr(instance, "get_reward"):
            return None
        value = await _result(instance.get_reward, {})
        number = finite_number(value)
        if number is None:
            raise OutcomeError(f"{self._name}.get_reward returned {value!r}. Return a finite number")
        return number


def _tool_names(instance: object) -> list[str]:
    """Public methods of the instance's class. Properties are not evaluated."""
    methods = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    return [name for name, _ in methods if name not in _RESERVED and not name.startswith("_")]


def _describe(owner: str, method: Callable[..., Any]) -> Tool:
    """Tool of a method, by the rules of transformers' `get_json_schema`."""
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    try:
        schema = get_json_schema(method)["function"]
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(
            f"method {method.__name__} of {owner} is a tool, and the model cannot be shown it: {error}. Give each "
            "argument a type and a line under `Args:`, or begin the name with _"
        ) from error
    return Tool(name=schema["name"], description=schema["description"], parameters=schema["parameters"])


async def _result(method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a method with the arguments that it takes, and await its result if it is awaitable."""
    returned = method(**accepted(method, arguments))
    return await returned if inspect.isawaitable(returned) else returned
