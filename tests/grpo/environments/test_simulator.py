from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from grpo.environments.environment import EnvironmentState, StepResult
from grpo.environments.simulator import SimulatedEnvironment, SimulatorError
from grpo.messages import Message
from grpo.scenario import Scenario

START = Scenario(id="s", goal="Guess my number.", world={"number": 3})
REPLY = Message(role="assistant", content="2")


class Guessing:
    """A game of another library: higher, lower, right."""

    def process(self, state: EnvironmentState, action: Message) -> Mapping[str, Any]:
        number, guess = state.world["number"], int(action.content)
        if guess == number:
            return {"reward": 1.0, "terminated": True, "success": True}
        return {"response": "higher" if guess < number else "lower", "reward": -0.1}


class Slow(Guessing):
    """The same, but it takes its time."""

    async def process(self, state: EnvironmentState, action: Message) -> Mapping[str, Any]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().process(state, action)


@pytest.mark.parametrize("simulator", [Guessing(), Slow()])
def test_a_simulator_drives_an_episode(simulator: Guessing):
    """Three turns with the simulator's answers, rewards, end and success."""

    async def run() -> list[StepResult]:
        world = SimulatedEnvironment(simulator, [START])
        state, results = await world.reset(), []
        for guess in ("1", "5", "3"):
            results.append(await world.step(state, Message(role="assistant", content=guess)))
            state = results[-1].state
        outcome = world.verify(state)
        assert outcome is not None
        assert outcome.success
        return results

    results = asyncio.run(run())
    assert [result.response and result.response.content for result in results] == ["higher", "lower", None]
    assert [result.reward for result in results] == [-0.1, -0.1, 1.0]
    assert [result.terminated for result in results] == [False, False, True]
    assert results[-1].state.turn_count == 3


def test_the_turn_limit_truncates_a_simulator():
    """Success stays unknown."""

    async def run() -> None:
        world = SimulatedEnvironment(Guessing(), max_turns=1)
        result = await world.step(await world.reset(START), REPLY)
        assert (result.terminated, result.truncated) == (False, True)
        assert world.verify(result.state) is None

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        None, {}, {"reply": "higher"}, {"response": None}, ("higher", False),
        {"response": "go on", "terminated": "false"},
        {"response": "go on", "truncated": "no"}, {"response": {"content": "Bye"}, "terminated": True},
        {"response": "go on", "role": "assistant"}, {"response": "Bye", "terminated": True, "success": "false"},
        {"response": "Bye", "terminated": True, "success": 0.5},
    ],
)  # fmt: skip
def test_an_invalid_answer_is_an_error_of_the_simulator(answer: Any):
    """It is not replaced."""

    class Broken:
        def process(self, state: EnvironmentState, action: Message) -> Any:
            return answer

    async def run() -> None:
        world = SimulatedEnvironment(Broken())
        await world.step(await world.reset(START), REPLY)

    with pytest.raises(SimulatorError):
        asyncio.run(run())


def test_answers_of_another_form_are_converted_by_a_subclass():
    """A simulator that answers with a pair."""

    class Pair:
        def process(self, state: EnvironmentState, action: Message) -> Any:
            return "bye", True

    class Fitted(SimulatedEnvironment):
        def convert(self, state: EnvironmentState, answer: Any) -> StepResult:
            words, over = answer
            return super().convert(state, {"response": words, "terminated": over})

    async def run() -> StepResult:
        world = Fitted(Pair())
        return await world.step(await world.reset(START), REPLY)

    result = asyncio.run(run())
    assert (result.response, result.terminated) == (Message(role="user", content="bye"), True)
