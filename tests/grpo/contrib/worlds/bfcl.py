"""BFCL's multi-turn tasks as scenarios, and calls in one of their worlds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from grpo.contrib.datasets.bfcl_multi_turn import read_bfcl_multi_turn
from grpo.environments.catalog import load_worlds
from grpo.environments.task import TaskEnvironment
from grpo.scenario import Scenario
from tests.places import PUBLISHED

FOLDER = PUBLISHED / "bfcl_multi_turn"
published = pytest.mark.skipif(not FOLDER.exists(), reason=f"no published tasks at {FOLDER}")
WORLD = TaskEnvironment(max_turns=100, worlds=load_worlds())

Call = tuple[str, dict[str, Any]]


def bfcl_scenarios(part: str = "base") -> list[Scenario]:
    """All 200 tasks of a part."""
    return [Scenario.model_validate(record.data) for record in read_bfcl_multi_turn(FOLDER, (part,))]


def held_back(scenario: Scenario) -> Scenario | None:
    """The task with its first expected tool held back, in the shape of the part `miss_func`.

    The request that the tool answers stays where it is, and a turn behind it brings the tool: the calls of that request
    and of all later ones move by one turn. None for a task without calls.
    """
    record = scenario.model_dump(mode="json")
    calls = record["expected"]["calls"]
    if not calls:
        return None
    name, turn = calls[0]["name"], calls[0]["turn"] + 1
    for tool in record["tools"]:
        if tool["name"] == name:
            tool["from_turn"] = turn
    for call in calls:
        call["turn"] += 1
    record["user_responses"].insert(turn, "There are more functions now.")
    return Scenario.model_validate({**record, "id": f"{scenario.id}-held-back"})


def run_calls(place: str, start: dict[str, Any], *calls: Call) -> tuple[list[Any], dict[str, Any]]:
    """Results of calls in a world that starts like this, and its state afterwards."""
    names = sorted({name for name, _ in calls})
    properties = {name: sorted({key for n, arguments in calls if n == name for key in arguments}) for name in names}
    scenario = Scenario.model_validate(
        {
            "id": "s",
            "user_responses": ["Go."],
            "tools": [{"name": n, "parameters": {"properties": {key: {} for key in properties[n]}}} for n in names],
            "world": {place: start},
            "expected": {"calls": [{"name": name, "arguments": arguments} for name, arguments in calls]},
        }
    )

    async def run() -> tuple[list[Any], dict[str, Any]]:
        steps = [step async for step in WORLD.replay(scenario)]
        return [step.result for step in steps], dict(steps[-1].world[place])

    return asyncio.run(run())


def failed_calls(results: list[Any]) -> list[bool]:
    """Calls that failed."""
    return [isinstance(result, dict) and "error" in result for result in results]
