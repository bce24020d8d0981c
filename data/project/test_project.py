"""Tests of the shop's parts: `python -m pytest`."""

import asyncio

from environment import ShopEnvironment
from logged import customers
from reward import looked_up_first

from grpo import Message, RewardContext, Scenario, ToolCall

SCENARIO = Scenario(
    id="order-1",
    user_responses=("My lamp is broken. The order number is 1.",),
    world={"orders": {"1": {"price": 20, "days": 3}}},
    expected={"calls": [{"name": "replace", "arguments": {"order": "1"}}]},
)


def call(name: str, order: str) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments={"order": order}),))


def play(*actions: Message):
    """The state after these turns of an agent, and the environment."""

    async def steps():
        environment = ShopEnvironment()
        state = await environment.reset(SCENARIO)
        for action in actions:
            state = (await environment.step(state, action)).state
        return environment, state

    return asyncio.run(steps())


def test_a_replaced_order_is_a_success():
    environment, state = play(call("look_up", "1"), call("replace", "1"))
    assert environment.verify(state).success


def test_an_unknown_order_is_an_error_that_the_agent_reads():
    environment, state = play(call("replace", "2"))
    assert "order 2 does not exist" in state.history[-1].content
    assert not environment.verify(state).success


def test_the_reward_is_for_a_first_call_that_looks_up():
    context = RewardContext(scenario_id="order-1", category="broken", stop="terminated")
    assert looked_up_first([call("look_up", "1"), call("replace", "1")], context) == 1
    assert looked_up_first([call("replace", "1")], context) == 0


def test_a_logged_chat_is_a_customer_whose_order_is_in_the_world():
    first = next(customers())
    order = first["expected"]["calls"][0]["arguments"]["order"]
    assert first["expected"]["calls"] == [{"name": "replace", "arguments": {"order": order}}]
    assert order in first["world"]["orders"]
    assert order in first["user_responses"][0]
