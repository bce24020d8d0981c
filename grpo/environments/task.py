"""Task environment: the agent acts on a world by tools, and success is verified on its final state."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.agents.tools import FunctionFailed, ToolError, call_function
from grpo.environments.conversation import TurnReward, is_verified
from grpo.environments.environment import Environment, EnvironmentState, as_flag
from grpo.environments.scenario_sampler import ScenarioLike
from grpo.environments.tool_calling import (
    ToolCallingEnvironment,
    calls_made,
    facts_communicated,
    user_turn_index,
)
from grpo.environments.users.user import User
from grpo.environments.world import Function, State, World, describe_function
from grpo.errors import ConfigError, DataError, OutcomeError
from grpo.messages import Tool, ToolCall
from grpo.scenario import Scenario
from grpo.strict_json import encode
from grpo.tools import argument_error
from grpo.trajectories import Outcome
from grpo.user_failures import shown

Criterion = Callable[[Mapping[str, Any]], bool]
"""Predicate on the state of the world."""

_VERIFIED = ("DB", "COMMUNICATE", "ACTION")
"""Parts of a scenario's success that are verified here."""


class TaskEnvironment(ToolCallingEnvironment):
    """Environment of tool tasks that verifies success on the final state.

    Tools are your own functions (state, **arguments) → (new state, result), or the functions of `worlds`, from which a
    scenario selects the ones in its `tools`. A call is first validated against the tool's schema. If the call has an
    error, or if your own function raises an exception or exceeds `tool_timeout_s`, the model sees this as the result,
    and the state does not change.

    An episode succeeds if all `criteria` hold, and ends as soon as they do. Without criteria, the scenario
    defines success by the parts of `expected.basis`:

        DB             each part of the state that `expected.state` names must equal it; if it names none, the whole
                       state must equal the one that `expected.calls` lead to, and in worlds with `verify_results` the
                       results of these calls must have been seen
        COMMUNICATE    `expected.facts` must have been communicated
        ACTION         `expected.calls` must have been made, with the same arguments or only the ones in `compare_args`
        NL_ASSERTION, ENV_ASSERTION    not verified here, and success is None

    A scenario that expects nothing has no success. If the world must not change, write
    `expected: {reward_basis: [DB]}`.

    Names in a state that begin with `_` are not compared.
    """

    def __init__(
        self,
        scenarios: Iterable[ScenarioLike] = (),
        max_turns: int = 10,
        reward_fn: TurnReward | None = None,
        randomize_scenarios: bool = True,
        *,
        functions: Sequence[Function] = (),
        criteria: Mapping[str, Criterion] | None = None,
        worlds: Sequence[World] = (),
        system_prompt: str = "",
        user: User | None = None,
        tool_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(scenarios, max_turns, reward_fn, randomize_scenarios, system_prompt=system_prompt, user=user)
        self.tool_timeout_s = tool_timeout_s
        if bool(functions) == bool(worlds):
            raise ConfigError("a task needs tools: pass either functions or worlds")
        self.criteria = dict(criteria or {})
        self.tools = tuple(map(describe_function, functions))
        named = {describe_function(function).name: function for function in functions}
        self._worlds = tuple(worlds) or (World(functions=named),)
        self._worlds_of = {
            name: tuple(world for world in self._worlds if name in world.functions)
            for world in self._worlds
            for name in world.functions
        }

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the user's first turn and the scenario's world, with its tools in the context."""
        state = await super().reset(scenario, seed=seed)
        metadata = {**state.metadata, "results": (), "expected": await self._expect(state.scenario)}
        return state.after(world=self._init_world(state.scenario), metadata=metadata)

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario with an unknown tool, or with an expected call that fails in a world with
        `verify_results`."""
        await super().check(scenario)
        self._available_tools(scenario)
        await self._expect(scenario)

    async def _execute(self, state: EnvironmentState, call: ToolCall) -> tuple[EnvironmentState, Any]:
        offered = self._available_tools(state.scenario, turn=user_turn_index(state))
        world, result, _ = await self._try_call(state.world, offered, call)
        metadata = {**state.metadata, "results": (*state.metadata["results"], result)}
        return state.after(world=world, metadata=metadata), result

    def _other_state(self, state: EnvironmentState) -> dict[str, Any]:
        """See `ToolCallingEnvironment._other_state`. Results so far and the target of the verification are left out."""
        parts = super()._other_state(state)
        return {name: value for name, value in parts.items() if name not in ("results", "expected")}

    def _is_complete(self, state: EnvironmentState) -> bool:
        return bool(self.criteria) and all(self._criteria_of(state).values())

    def _criteria_of(self, state: EnvironmentState) -> dict[str, bool]:
        """Results of the criteria, which get a copy of the world. Raises `OutcomeError` for any other result."""
        results = {}
        for name, holds in self.criteria.items():
            result = holds(copy.deepcopy(dict(state.world)))
            flag = False if result is None else as_flag(result)
            if flag is None:
                if inspect.iscoroutine(result):
                    result.close()
                raise OutcomeError(f"criterion {name} returned {shown(result)}. Return True or False")
            results[name] = flag
        return results

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True if there are criteria, or if each part of the scenario's success is verified here or by a judge."""
        if type(self).verify is not TaskEnvironment.verify:
            return Environment.can_verify(self, scenario, judged=judged)
        basis = scenario.expected.basis
        return bool(self.criteria) or is_verified(
            checked=any(part in _VERIFIED for part in basis),
            unjudged=[part for part in basis if part not in _VERIFIED],
            judged=judged,
        )

    def verify(self, state: EnvironmentState) -> Outcome:
        """Compare the final state with the criteria, or with the scenario's expectations."""
        if self.criteria:
            return Outcome.of(self._criteria_of(state), state=_compared_state(state.world))
        target: _Target = state.metadata["expected"]
        expected, world, checks = state.scenario.expected, _compared_state(state.world), {}
        if "DB" in expected.basis:
            compared = {part: world.get(part) for part in target.state} if expected.state else world
            checks["end_state"] = compared == target.state
            if target.results:
                seen = [_serialized(result) for result in state.metadata["results"]]
                checks["answers_seen"] = all(result in seen for result in target.results)
        if "COMMUNICATE" in expected.basis:
            checks["facts_communicated"] = facts_communicated(expected, state)
        if "ACTION" in expected.basis:
            checks["calls_made"] = calls_made(expected, state)
        unjudged = tuple(part for part in expected.basis if part not in _VERIFIED)
        return Outcome.of(checks, unjudged=unjudged, state=world)

    async def replay(self, scenario: Scenario) -> AsyncIterator[ReplayStep]:
        """Execute the scenario's expected calls in order, from its initial world."""
        world: Mapping[str, Any] = self._init_world(scenario)
        offered = self._available_tools(scenario)
        for expected in scenario.expected.calls:
            call, before = ToolCall(name=expected["name"], arguments=expected["arguments"]), world
            world, result, failed = await self._try_call(world, offered, call)
            changed = _compared_state(world) != _compared_state(before)
            yield ReplayStep(call=call, result=result, world=world, changed=changed, failed=failed)

    async def _expect(self, scenario: Scenario) -> _Target:
        """Target of the verification, empty if criteria verify the episode."""
        if self.criteria or scenario.expected.state:
            return _Target(state=_compared_state(scenario.expected.state))
        steps = [step async for step in self.replay(scenario)]
        world = steps[-1].world if steps else self._init_world(scenario)
        verified = [
            step
            for step in steps
            if step.call.name in self._worlds_of and self._world_of(world, step.call.name).verify_results
        ]
        failed = next((step for step in verified if step.failed), None)
        if failed is not None:
            raise DataError(
                f"scenario {scenario.id} is not playable: its world refuses the expected call {failed.call} "
                f"({failed.result['error']}). Leave it out"
            )
        results = [step.result for step in verified if not step.changed]
        return _Target(state=_compared_state(world), results=tuple(map(_serialized, results)))

    def _available_tools(self, scenario: Scenario, *, turn: int | None = None) -> dict[str, Tool]:
        """Tools of a scenario by name: the tools available in a turn of the user, or all.

        Raises `DataError` if no world has one of the tools.
        """
        if self.tools:
            return super()._available_tools(scenario, turn=turn)
        unknown = sorted({tool["name"] for tool in scenario.tools} - set(self._worlds_of))
        if unknown:
            raise DataError(
                f"scenario {scenario.id} is not playable: no world has {', '.join(unknown[:5])}"
                f"{' …' if len(unknown) > 5 else ''}. Leave it out"
            )
        return super()._available_tools(scenario, turn=turn)

    def _init_world(self, scenario: Scenario) -> dict[str, Any]:
        """Initial world: each part that the scenario's tools act on."""
        state = copy.deepcopy(scenario.world)
        worlds = [self._world_of(state, name) for name in self._available_tools(scenario)]
        for world in {id(world): world for world in worlds}.values():
            if world.state_key is None:
                state = world.init_state(state)
            else:
                state[world.state_key] = world.init_state(state.get(world.state_key, {}))
        return state

    def _world_of(self, state: Mapping[str, Any], tool: str) -> World:
        """World of a tool. If several have this tool, the one with its key in the state."""
        worlds = self._worlds_of[tool]
        return next((world for world in worlds if world.state_key in state), worlds[-1])

    async def _try_call(
        self, world: Mapping[str, Any], offered: Mapping[str, Tool], call: ToolCall
    ) -> tuple[Mapping[str, Any], Any, bool]:
        """State after one call, its result, and True if the call failed. The result is then the reason."""
        try:
            return *(await self._call(world, offered, call)), False
        except ToolError as reason:
            return world, {"error": str(reason)}, True
        except FunctionFailed as failure:
            return world, failure.result, True

    async def _call(
        self, world: Mapping[str, Any], offered: Mapping[str, Tool], call: ToolCall
    ) -> tuple[Mapping[str, Any], Any]:
        """State after one call on a copy, and its result. Raises `ToolError` if the call fails."""
        tool = offered.get(call.name)
        if tool is None:
            raise ToolError(f"unknown tool {call.name}; there are {', '.join(offered)}")
        problem = argument_error(tool, call.arguments)
        if problem is not None:
            raise ToolError(problem)
        owner = self._world_of(world, call.name)
        key, function = owner.state_key, owner.functions[call.name]
        part, arguments = copy.deepcopy(dict(world) if key is None else world[key]), copy.deepcopy(dict(call.arguments))
        if self.tools:
            return await self._call_own(function, part, arguments)
        try:
            returned = function(part, **arguments)
            part, result = await returned if inspect.isawaitable(returned) else returned
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ToolError(f"{call.name} cannot take these arguments: {type(error).__name__}") from error
        return (part if key is None else {**world, key: part}), result

    async def _call_own(self, function: Function, state: State, arguments: Mapping[str, Any]) -> tuple[State, Any]:
        """State after a call of the user's own function, and its result.

        Raises `FunctionFailed` if it raises or times out, and `ConfigError` if it does not return a state and a result
        that JSON can hold.
        """
        returned = await call_function(
            function, [state], arguments, name=function.__name__, timeout_s=self.tool_timeout_s
        )
        place = f"tool {function.__name__} of {inspect.getsourcefile(inspect.unwrap(function))}"
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Mapping)):
            raise ConfigError(f"{place} returned {type(returned).__name__}. Return the state and the result")
        try:
            json.dumps(returned)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{place}: state or result is not JSON: {error}. Return plain values") from error
        encode(returned)  # NaN or half of a surrogate pair, which depend on the data, fail this episode
        return dict(returned[0]), returned[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """One expected call and its effect."""

    call: ToolCall
    result: Any
    world: Mapping[str, Any]
    """State after the call."""
    changed: bool
    """The call changed the state."""
    failed: bool
    """The call failed, and the result has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    state: Mapping[str, Any]
    results: tuple[str, ...] = ()


def _compared_state(state: Any) -> Any:
    """State without transient parts, such as the current folder, which have names that begin with `_`."""
    if isinstance(state, Mapping):
        return {name: _compared_state(value) for name, value in state.items() if not str(name).startswith("_")}
    return [_compared_state(value) for value in state] if isinstance(state, (list, tuple)) else state


def _serialized(result: Any) -> str:
    return json.dumps(result, sort_keys=True)
