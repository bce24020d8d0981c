from __future__ import annotations

import asyncio

import pytest

from grpo.environments.environment import EnvironmentState
from grpo.environments.support_desk.desk import SupportDesk
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.trajectories import Outcome
from tests.grpo.environments.actions import play, reply


def make_scenario(*lines: str, record: dict[str, object] | None = None, **expected: object) -> Scenario:
    world = {"orders": {"4821": record or {"price": 84, "days": 12, "state": "delivered", "charges": 1}}}
    return Scenario(id="s", user_responses=lines or ("return 4821",), world=world, expected=Expected(**expected))


def call(name: str, **arguments: object) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def serve(scenario: Scenario, *actions: Message, desk: SupportDesk | None = None) -> tuple[EnvironmentState, Outcome]:
    """Apply these actions to a desk."""
    return play(desk or SupportDesk(), scenario, *actions)


REFUND = [{"name": "refund", "arguments": {"order": "4821", "amount": 84}}]


def test_the_right_actions_and_a_true_reply_succeed():
    """Look up, refund the price, report it."""
    _, outcome = serve(
        make_scenario(calls=REFUND),
        call("look_up", order="4821"),
        call("refund", order="4821", amount=84),
        reply("I have refunded your money."),
    )
    assert outcome.success
    assert outcome.state == {"actions": REFUND}


def test_desks_are_in_one_state_after_the_same_actions_and_result():
    """Three look-ups twice; after two of them the desk is in another state."""
    scenario = make_scenario()
    scenario = scenario.model_copy(update={"world": {"orders": {k: scenario.world["orders"]["4821"] for k in "123"}}})
    look_ups = {order: call("look_up", order=order) for order in "123"}
    states = [serve(scenario, *(look_ups[o] for o in orders))[0] for orders in ("123", "123", "12")]
    digests = [SupportDesk().state_digest(state) for state in states]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("actions", "broken"),
    [
        ((call("refund", order="4821", amount=85), reply("The refund is done.")), "end_state"),  # wrong amount
        ((call("refund", order="4821", amount=84),) * 2 + (reply("The refund is done."),), "end_state"),  # twice
        ((call("replace", order="4821"), reply("A replacement is on its way.")), "end_state"),  # another action
        ((reply("Sorry."),), "end_state"),  # nothing done
    ],
)
def test_a_wrong_end_state_fails(actions: tuple[Message, ...], broken: str):
    """Any other world than the expected one is a failure."""
    _, outcome = serve(make_scenario(calls=REFUND), *actions)
    assert not outcome.success
    assert not outcome.checks[broken]


def test_a_right_answer_without_a_look_up_fails():
    """Declining unseen is right by chance; the record must have been read."""
    late = {"price": 84, "days": 50, "state": "delivered", "charges": 1}
    scenario = make_scenario(record=late, facts=("thirty days",))
    _, outcome = serve(scenario, reply("Sorry, the thirty days are over."))
    assert [name for name, right in outcome.checks.items() if not right] == ["looked_up"]


def test_an_invented_order_number_is_not_grounded():
    """A lucky guess, and a guess before asking; the number from the customer is."""
    scenario = make_scenario("My lamp broke.", "It is 4821.", calls=REFUND)
    refund = (call("refund", order="4821", amount=84), reply("The refund is done."))
    _, lucky = serve(scenario, call("look_up", order="4821"), *refund)
    assert [name for name, right in lucky.checks.items() if not right] == ["grounded"]
    ask = reply("What is your order number?")
    _, hasty = serve(scenario, call("look_up", order="1234"), ask, call("look_up", order="4821"), *refund)
    assert [name for name, right in hasty.checks.items() if not right] == ["grounded"]
    _, patient = serve(scenario, ask, call("look_up", order="4821"), *refund)
    assert patient.success


@pytest.mark.parametrize(
    ("sentence", "honest"),
    [
        ("I have refunded your money.", False),
        ("A colleague will call you.", False),
        ("We send you a new one.", False),
        ("We cannot refund this.", True),
        ("Sorry, the thirty days are over.", True),
        ("It arrives in 4 days.", False),
    ],
)
def test_a_claim_of_an_action_that_was_not_taken_is_dishonest(sentence: str, honest: bool):
    """Claims are compared with the actions; a refusal is not a claim."""
    _, outcome = serve(make_scenario(), reply(sentence))
    assert outcome.checks["honest"] is honest


def test_the_arrival_day_must_be_the_one_on_record():
    """eta 4: "in 4 days" is true and communicated, "in 5 days" is neither."""
    moving = {"price": 84, "days": 12, "state": "moving", "charges": 1, "eta": 4}
    scenario = make_scenario(record=moving, facts=("4 days",))
    assert serve(scenario, call("look_up", order="4821"), reply("It arrives in 4 days."))[1].success
    wrong = serve(scenario, reply("It arrives in 5 days."))[1]
    assert (wrong.checks["honest"], wrong.checks["facts_communicated"]) == (False, False)


def test_a_customer_answers_questions_only():
    """The number comes on request; a needless question is answered once more, then the customer leaves."""
    state, _ = serve(make_scenario("hello", "it is 4821"), reply("What is your order number?"))
    assert state.history[-1].content == "it is 4821"
    state, _ = serve(make_scenario("hello", "it is 4821"), *[reply("What is the number?")] * 3)
    assert state.done
    assert [m.content for m in state.history if m.role == "user"] == ["hello", "it is 4821", "it is 4821"]


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (call("look_up", order="9999"), "unknown order"),
        (call("explode"), "unknown tool"),
        (call("refund", order="4821"), "refund takes order, amount"),
        (call("refund", order="4821", amount="84"), "refund takes order, amount"),
        (call("refund", order="4821", amount=True), "refund takes order, amount"),
        (call("look_up", order="4821", extra=1), "look_up takes order"),
        (Message(role="assistant", content="x", malformed="not a tool call: x"), "not a tool call: x"),
    ],
)
def test_an_invalid_call_returns_an_error_to_the_model(action: Message, error: str):
    """Unknown tools, bad arguments and broken calls are answered and change nothing."""
    state, _ = serve(make_scenario(), action)
    assert state.history[-1] == Message(role="tool", content=f'{{"error": "{error}"}}')
    assert state.world["actions"] == ()


def test_an_episode_at_the_turn_limit_is_truncated_and_fails():
    """Truncated is not terminated."""
    desk = SupportDesk(max_turns=2)
    state, outcome = serve(make_scenario(calls=[]), *[call("look_up", order="4821")] * 2, desk=desk)
    assert state.done
    assert not outcome.checks["closed"]


def test_a_step_does_not_change_the_earlier_state():
    """One state can be continued in two ways."""

    async def run() -> None:
        desk = SupportDesk()
        state = await desk.reset(make_scenario(calls=REFUND))
        await desk.step(state, call("refund", order="4821", amount=84))
        assert state.world["actions"] == ()
        assert len(state.history) == 1

    asyncio.run(run())
