"""Environment whose turns come from a simulator of the user's own, an object with a method `process`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol

from grpo.environments.environment import Environment, EnvironmentState, StepResult, as_flag, episode_id
from grpo.environments.scenario_sampler import ScenarioLike, ScenarioSampler
from grpo.messages import Message
from grpo.scenario import Scenario
from grpo.trajectories import Outcome

_FIELDS = {"response", "role", "reward", "terminated", "truncated", "success", "world"}


class SimulatorError(Exception):
    """The simulator returned an invalid answer, so that the episode counts as failed."""


class Simulator(Protocol):
    """Interface of a simulator. `process` may be a coroutine."""

    def process(self, state: EnvironmentState, action: Message) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Answer the agent's message in the form of `convert`, without changing `state`."""
        ...


class SimulatedEnvironment(Environment):
    """Environment with turns from a simulator: the scenario's first line or goal opens, and `process` answers.

    If a simulator's answers have another form, override `convert`.
    """

    def __init__(
        self,
        simulator: Simulator,
        scenarios: Iterable[ScenarioLike] = (),
        max_turns: int = 10,
        *,
        system_prompt: str = "",
    ) -> None:
        self._sampler = ScenarioSampler(scenarios, shuffled=True)
        self.simulator = simulator
        self.scenarios = self._sampler.scenarios
        self.max_turns = max_turns
        self.system_prompt = system_prompt

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Open with the scenario's first line, or its goal if it has no lines. The simulator starts from its world."""
        scenario = self._sampler.sample(seed) if scenario is None else scenario
        opening = scenario.user_responses[0] if scenario.user_responses else scenario.goal
        return EnvironmentState(
            scenario=scenario,
            episode_id=episode_id(scenario, seed),
            context=scenario.context,
            history=(Message(role="user", content=opening),),
            world=scenario.world,
            metadata={"seed": seed},
        )

    async def step(self, state: EnvironmentState, action: Message) -> StepResult:
        """Let the simulator answer. At `max_turns` the episode is cut off, unless the simulator has ended it."""
        state = state.after(action, turn_count=state.turn_count + 1)
        answer = self.simulator.process(state, action)
        return self.convert(state, await answer if inspect.isawaitable(answer) else answer)

    def convert(self, state: EnvironmentState, answer: Mapping[str, Any]) -> StepResult:
        """Convert an answer of the simulator.

            response    message of the user or tool; may be absent if the episode is over
            role        role of the message: user (default) or tool
            reward      reward of this turn
            terminated, truncated    the episode ended by itself, or was cut off
            success     result of `verify`
            world       new state of the world; absent if it does not change

        Raises `SimulatorError` for anything else.
        """
        if not isinstance(answer, Mapping) or not set(answer) <= _FIELDS:
            raise SimulatorError(f"expected a mapping with keys of {', '.join(sorted(_FIELDS))}, got {answer!r:.200}")
        terminated, truncated = (self._flag(answer, name) for name in ("terminated", "truncated"))
        truncated = not terminated and (truncated or state.turn_count >= self.max_turns)
        words, role, response = answer.get("response"), answer.get("role", "user"), None
        if words is not None and not isinstance(words, str):
            raise SimulatorError(f"response is {words!r:.200}. Give a text, or None if the episode is over")
        if role not in ("user", "tool"):
            raise SimulatorError(f"role is {role!r:.200}. Give user or tool")
        if words is not None:
            response = Message(role=role, content=words)
        elif not terminated and not truncated:
            raise SimulatorError(f"no response in {answer!r:.200}, and the episode is not over")
        success = state.metadata.get("success")
        if "success" in answer:
            success = None if answer["success"] is None else self._flag(answer, "success")
        state = state.after(
            *([response] if response else []),
            done=terminated or truncated,
            world=answer.get("world", state.world),
            metadata={**state.metadata, "success": success},
        )
        return StepResult(
            state=state, response=response, reward=answer.get("reward"), terminated=terminated, truncated=truncated
        )

    def _flag(self, answer: Mapping[str, Any], name: str) -> bool:
        if answer.get(name) is None:
            return False
        flag = as_flag(answer[name])
        if flag is None:
            raise SimulatorError(f"{name} is {answer[name]!r:.200}. Give True or False")
        return flag

    def verify(self, state: EnvironmentState) -> Outcome | None:
        """Success as the simulator reported it, or None if it did not."""
        success = state.metadata.get("success")
        return None if success is None else Outcome(success=success, state=dict(state.world))
