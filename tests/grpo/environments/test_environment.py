"""Wrapper of single-turn episodes, and checks of scenarios by an environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from grpo.environments.catalog import load_worlds, unplayable_reasons, verifies
from grpo.environments.conversation import ConversationEnvironment
from grpo.environments.environment import SingleTurnEnvironment
from grpo.environments.task import TaskEnvironment
from grpo.scenario import Scenario
from grpo.user_failures import UserCodeError

SCRIPTED = [Scenario(id=f"s{k}", user_responses=("hi",)) for k in range(9)]


BREWING = Scenario(id="b", user_responses=("hi",), tools=({"name": "brew", "parameters": {}},))


def test_a_wrapper_refuses_the_scenarios_of_the_wrapped_environment():
    """Single-turn episodes need a world as well."""
    world = SingleTurnEnvironment(TaskEnvironment(worlds=load_worlds()))
    assert list(unplayable_reasons(world, [*SCRIPTED, BREWING])) == ["b"]


@pytest.mark.parametrize("seam", ["raises", "no async", "can_verify"])
def test_a_check_of_the_users_that_fails_is_one_sentence(seam: str):
    """With the scenario and the method. The checks before a run call both."""

    class Odd(ConversationEnvironment):
        if seam == "raises":

            async def check(self, scenario: Scenario) -> None:
                raise KeyError("stock")

        if seam == "no async":

            def check(self, scenario: Scenario) -> None:  # type: ignore[misc, override]
                return None

        def can_verify(self, scenario: Scenario, *, judged: bool = False) -> bool | None:
            raise KeyError("stock")

    scenario, odd = Scenario(id="s", user_responses=("Hi.",)), Odd()
    reason = {
        "raises": r"scenario s: the environment's check raised KeyError: 'stock' \(test_environment\.py:",
        "no async": "scenario s: the environment's check raised TypeError: it is not async, so write it with",
        "can_verify": r"scenario s: the environment's can_verify raised KeyError: 'stock' \(test_environment\.py:",
    }[seam]
    call: Callable[[], object] = partial(unplayable_reasons, odd, [scenario])
    if seam == "can_verify":
        call = partial(verifies, odd, scenario, judged=False)
    with pytest.raises(UserCodeError, match=reason):
        call()
