"""Replay environment: a logged conversation again, with its tool calls answered from the log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.data_errors import excerpt
from grpo.environments.conversation import is_verified
from grpo.environments.environment import Environment, EnvironmentState
from grpo.environments.tool_calling import ToolCallingEnvironment, calls_made, facts_communicated
from grpo.errors import DataError
from grpo.messages import ToolCall
from grpo.scenario import Expected, Scenario
from grpo.tools import equal_values
from grpo.trajectories import Outcome

CALLS, UNRECORDED_CALLS = "calls", "unrecorded_calls"
"""Keys of `outcome.state`."""
_CALL_CHARS = 160
_SHOWN = 5  # recorded calls in the answer to another one


class ReplayEnvironment(ToolCallingEnvironment):
    """Scripted user turns, and tool calls answered from `world.recorded` of the scenario.

    A call has the result of the recorded call with the same name and arguments, compared by value. The k-th such call
    has the result of the k-th recorded one. Further calls have the result of the last one:

        recorded    state() → "open",   state() → "closed"
        calls       state() → "open",   state() → "closed",   state() → "closed"

    Any other call gets an error that names the recorded calls of the tool. `outcome.state` counts all calls and the
    unrecorded ones: `{"calls": 4, "unrecorded_calls": 1}`.

    An episode succeeds if all `expected.calls` were made, and all `expected.facts` were communicated. By default,
    success is None if no calls are expected, or if there are assertions. If `reward_basis` is explicit, success is None
    if it requires calls and none are expected, or if it has a part that a log cannot tell.
    """

    async def reset(self, scenario: Scenario | None = None, *, seed: int | None = None) -> EnvironmentState:
        """Start with the user's first turn. No call is answered yet."""
        state = await super().reset(scenario, seed=seed)
        recorded_calls(state.scenario)
        return state.after(metadata={**state.metadata, CALLS: (), UNRECORDED_CALLS: 0})

    async def check(self, scenario: Scenario) -> None:
        """Refuse a scenario if it has no script, or if a recorded call lacks a name, arguments or a result."""
        await super().check(scenario)
        recorded_calls(scenario)

    async def _execute(self, state: EnvironmentState, call: ToolCall) -> tuple[EnvironmentState, Any]:
        recorded = recorded_calls(state.scenario)
        results = [entry["result"] for entry in recorded if _same_call(entry["name"], entry["arguments"], call)]
        made: tuple[ToolCall, ...] = state.metadata[CALLS]
        earlier = sum(_same_call(other.name, other.arguments, call) for other in made)
        metadata = {**state.metadata, CALLS: (*made, call)}
        if results:
            return state.after(metadata=metadata), results[min(earlier, len(results) - 1)]
        metadata[UNRECORDED_CALLS] += 1
        return state.after(metadata=metadata), {"error": _not_recorded(call, recorded)}

    def _other_state(self, state: EnvironmentState) -> dict[str, Any]:
        """See `ToolCallingEnvironment._other_state`. Of the calls, it has how many results of each were given."""
        parts, made = super()._other_state(state), state.metadata[CALLS]
        recorded = recorded_calls(state.scenario)
        del parts[UNRECORDED_CALLS]
        return {**parts, CALLS: [_given(recorded[: k + 1], made) for k in range(len(recorded))]}

    def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
        """True if calls or facts are expected, and no part of success stays open."""
        if type(self).verify is not ReplayEnvironment.verify:
            return Environment.can_verify(self, scenario, judged=judged)
        expected, basis = scenario.expected, _basis(scenario.expected)
        checked = ("ACTION" in basis and expected.calls) or ("COMMUNICATE" in basis and expected.facts)
        return is_verified(checked=bool(checked), unjudged=_unjudged(expected), judged=judged)

    def verify(self, state: EnvironmentState) -> Outcome:
        """Check the expected calls and facts, and count the calls."""
        expected, checks = state.scenario.expected, {}
        basis = _basis(expected)
        if "ACTION" in basis and expected.calls:
            checks["calls_made"] = calls_made(expected, state)
        if "COMMUNICATE" in basis and expected.facts:
            checks["facts_communicated"] = facts_communicated(expected, state)
        unjudged = _unjudged(expected)
        calls = {CALLS: len(state.metadata[CALLS]), UNRECORDED_CALLS: state.metadata[UNRECORDED_CALLS]}
        return Outcome.of(checks, unjudged=unjudged, state=calls)


def _basis(expected: Expected) -> tuple[str, ...]:
    return expected.basis if expected.reward_basis is not None else ("ACTION", "COMMUNICATE", "NL_ASSERTION")


def _unjudged(expected: Expected) -> tuple[str, ...]:
    """Parts of success that a log cannot tell."""
    judged = {"ACTION": bool(expected.calls), "COMMUNICATE": True, "NL_ASSERTION": not expected.assertions}
    return tuple(part for part in _basis(expected) if not judged.get(part, False))


def recorded_calls(scenario: Scenario) -> Sequence[Mapping[str, Any]]:
    """Recorded calls of a scenario, possibly none.

    Raises `DataError` if `world.recorded` is not a list of `{"name", "arguments", "result"}`.
    """
    recorded = scenario.world.get("recorded", [])
    if not isinstance(recorded, list):
        raise DataError(_unplayable(scenario, f"world.recorded is {type(recorded).__name__}, not a list of calls"))
    for number, call in enumerate(recorded):
        entry = call if isinstance(call, dict) else {}
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("arguments"), dict):
            raise DataError(_unplayable(scenario, f"world.recorded.{number} has no name with arguments"))
        if "result" not in entry:
            raise DataError(_unplayable(scenario, f"world.recorded.{number}, a call of {entry['name']}, has no result"))
    return recorded


def _unplayable(scenario: Scenario, reason: str) -> str:
    return f"scenario {scenario.id} cannot be replayed: {reason}; correct it, or leave the scenario out"


def _same_call(name: str, arguments: Mapping[str, Any], call: ToolCall) -> bool:
    return name == call.name and equal_values(arguments, call.arguments)


def _given(recorded: Sequence[Mapping[str, Any]], made: Sequence[ToolCall]) -> bool:
    """True if the result of the last of these recorded calls was given."""
    name, arguments = recorded[-1]["name"], recorded[-1]["arguments"]
    before = [ToolCall(name=entry["name"], arguments=entry["arguments"]) for entry in recorded]
    return sum(_same_call(name, arguments, call) for call in made) >= sum(
        _same_call(name, arguments, call) for call in before
    )


def _not_recorded(call: ToolCall, recorded: Sequence[Mapping[str, Any]]) -> str:
    """Error of a call that the log does not have, with the recorded calls of its tool, or else the recorded tools."""
    same_tool = [_shown(entry["name"], entry["arguments"]) for entry in recorded if entry["name"] == call.name]
    problem = f"not recorded: {_shown(call.name, call.arguments)} was never called in this log"
    if same_tool:
        return f"{problem}; recorded calls of {excerpt(call.name, _CALL_CHARS)}: {_listed(same_tool)}"
    return f"{problem}; recorded tools: {_listed([entry['name'] for entry in recorded])}"


def _listed(names: Sequence[str]) -> str:
    """Different names in order, the first five."""
    different = list(dict.fromkeys(excerpt(name, _CALL_CHARS) for name in names))
    return ", ".join([*different[:_SHOWN], *(["…"] if len(different) > _SHOWN else [])]) or "none"


def _shown(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as it is written in code, `look_up(order="7")`, shortened."""
    written = ", ".join(f"{key}={excerpt(json.dumps(value), _CALL_CHARS)}" for key, value in arguments.items())
    return excerpt(f"{name}({written})", _CALL_CHARS)
