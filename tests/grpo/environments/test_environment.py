"""Wrapper of single-turn episodes."""

from __future__ import annotations

from grpo.environments.catalog import load_worlds, unplayable_reasons
from grpo.environments.environment import SingleTurnEnvironment
from grpo.environments.task import TaskEnvironment
from grpo.scenario import Scenario

SCRIPTED = [Scenario(id=f"s{k}", user_responses=("hi",)) for k in range(9)]


BREWING = Scenario(id="b", user_responses=("hi",), tools=({"name": "brew", "parameters": {}},))


def test_a_wrapper_refuses_the_scenarios_of_the_wrapped_environment():
    """Single-turn episodes need a world as well."""
    world = SingleTurnEnvironment(TaskEnvironment(worlds=load_worlds()))
    assert list(unplayable_reasons(world, [*SCRIPTED, BREWING])) == ["b"]
