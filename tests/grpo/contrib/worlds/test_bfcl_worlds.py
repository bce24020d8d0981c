"""Published multi-turn tasks of BFCL in the worlds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from tests.grpo.contrib.worlds.bfcl import FOLDER, WORLD, bfcl_scenarios, held_back, published

RETURNS = {
    "get_flight_cost": "travel_cost_list",
    "compute_exchange_rate": "exchanged_value",
    "estimate_distance": "distance",
}
USES = {
    "compute_exchange_rate": ("get_flight_cost", "value"),
    "set_budget_limit": ("compute_exchange_rate", "budget_limit"),
    "estimate_drive_feasibility_by_mileage": ("estimate_distance", "distance"),
    "logarithm": ("estimate_distance", "value"),
}
NOT_PLAYABLE = "bfcl-multi_turn_base_173"


def _playable() -> list[Scenario]:
    return [scenario for scenario in bfcl_scenarios() if scenario.id != NOT_PLAYABLE]


async def _play(scenario: Scenario, calls: Sequence[dict[str, Any]]) -> bool:
    """Success of an agent that makes these calls and then only replies."""
    state = await WORLD.reset(scenario)
    for call in calls:
        made = ToolCall(name=call["name"], arguments=call["arguments"])
        state = (await WORLD.step(state, Message(role="assistant", content="", tool_calls=(made,)))).state
    while not state.done:
        state = (await WORLD.step(state, Message(role="assistant", content="Done."))).state
    return WORLD.verify(state).success


@published
def test_the_published_calls_run_in_every_task_but_one():
    """199 tasks with 1137 calls, none of which fails."""

    async def run() -> tuple[int, int, list[str]]:
        tasks = _playable()
        steps = [(scenario.id, step) for scenario in tasks for step in [s async for s in WORLD.replay(scenario)]]
        return len(tasks), len(steps), [f"{name}: {step.call}" for name, step in steps if step.failed]

    assert asyncio.run(run()) == (199, 1137, [])


@published
def test_amounts_that_later_calls_use_are_those_that_earlier_calls_returned():
    """3 fares are exchanged, 8 exchanged sums become the budget, and 11 distances are calculated with."""

    async def run() -> tuple[list[Any], list[Any]]:
        used, returned = [], []
        for scenario in _playable():
            last: dict[str, Any] = {}
            async for step in WORLD.replay(scenario):
                source, argument = USES.get(step.call.name, ("", ""))
                if source in last and step.call.arguments.get("base_currency", "USD") == "USD":  # a fare is in dollars
                    used.append((source, step.call.arguments[argument]))
                    returned.append((source, last[source]))
                if step.call.name in RETURNS:
                    value = step.result[RETURNS[step.call.name]]
                    last[step.call.name] = value[0] if isinstance(value, list) else value
        return used, returned

    used, returned = asyncio.run(run())
    assert used == returned
    assert Counter(source for source, _ in used) == {
        "get_flight_cost": 3,
        "compute_exchange_rate": 8,
        "estimate_distance": 11,
    }


@published
def test_the_unplayable_task_is_named_with_its_reason():
    """Its ticket has words for a number, which the documents of the tool forbid."""
    (scenario,) = [scenario for scenario in bfcl_scenarios() if scenario.id == NOT_PLAYABLE]
    with pytest.raises(DataError, match=r"173 is not playable.*close_ticket.*'ticket_001' is not of type 'integer'"):
        asyncio.run(WORLD.reset(scenario))


@published
def test_the_published_calls_succeed_and_silence_fails():
    """An agent that makes the expected calls succeeds in all 199 tasks; one without calls in none."""

    async def run() -> tuple[int, int]:
        tasks = _playable()
        right = [await _play(scenario, scenario.expected.calls) for scenario in tasks]
        return sum(right), sum([await _play(scenario, []) for scenario in tasks])

    assert asyncio.run(run()) == (199, 0)


async def _play_by_turn(scenario: Scenario, calls: Sequence[dict[str, Any]]) -> bool:
    """Success of an agent that makes each call in its turn, or as soon as its tool is there."""
    arrival = {tool["name"]: tool.get("from_turn", 0) for tool in scenario.tools}
    state, turn = await WORLD.reset(scenario), 0
    while not state.done:
        for call in calls:
            if max(call["turn"], arrival[call["name"]]) == turn:
                made = ToolCall(name=call["name"], arguments=call["arguments"])
                state = (await WORLD.step(state, Message(role="assistant", content="", tool_calls=(made,)))).state
        state = (await WORLD.step(state, Message(role="assistant", content="Done."))).state
        turn += 1
    return WORLD.verify(state).success


@published
def test_tasks_whose_first_tool_comes_late_are_played_to_the_end():
    """With the first expected tool held back, the same 199 tasks succeed by the expected calls and none without."""

    async def run() -> tuple[int, int]:
        tasks = [task for scenario in _playable() if (task := held_back(scenario)) is not None]
        right = [await _play_by_turn(task, task.expected.calls) for task in tasks]
        return sum(right), sum([await _play_by_turn(task, []) for task in tasks])

    assert asyncio.run(run()) == (199, 0)


@pytest.mark.skipif(
    not (FOLDER / "BFCL_v4_multi_turn_miss_func.json").exists(), reason=f"no published miss_func tasks in {FOLDER}"
)
def test_the_published_tasks_with_a_missing_function_are_played():
    """199 of 200 succeed by the published calls, none by silence; 173 is not playable for the same reason as in base.

    Task 49's own solution uses `tail` two turns before the task brings it: here it is called when it is there.
    """

    async def run() -> tuple[int, int]:
        tasks = [task for task in bfcl_scenarios("miss_func") if not task.id.endswith("_173")]
        right = [await _play_by_turn(task, task.expected.calls) for task in tasks]
        return sum(right), sum([await _play_by_turn(task, []) for task in tasks])

    assert asyncio.run(run()) == (199, 0)


@published
def test_a_missing_last_change_fails():
    """Without the last call that changed something, no task is a success."""

    async def run() -> list[str]:
        lucky = []
        for scenario in _playable():
            changes = [step.changed async for step in WORLD.replay(scenario)]
            if any(changes):
                last = len(changes) - 1 - changes[::-1].index(True)
                calls = scenario.expected.calls
                if await _play(scenario, (*calls[:last], *calls[last + 1 :])):
                    lucky.append(scenario.id)
        return lucky

    assert asyncio.run(run()) == []
