from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from grpo.agents.tools import ToolError
from grpo.config.environments import TaskSettings
from grpo.environments.catalog import load_worlds, make_environment
from grpo.environments.environment import StepResult
from grpo.environments.task import TaskEnvironment
from grpo.environments.world import describe_function
from grpo.errors import ConfigError, DataError, OutcomeError
from grpo.messages import Message, ToolCall
from grpo.renderers.reply_format import HERMES
from grpo.scenario import Expected, Scenario
from grpo.trajectories import NOTHING_EXPECTED, Outcome
from grpo.user_failures import current_scenario

State = dict[str, Any]
ORDER = Scenario(
    id="order", user_responses=("Cancel order 1, please.", "Thanks."), world={"orders": {"1": "open", "2": "sent"}}
)


def cancel(state: State, order: str) -> tuple[State, Any]:
    """Cancel an order."""
    if state["orders"].get(order) != "open":
        raise ToolError(f"order {order} cannot be cancelled")
    state["orders"][order] = "cancelled"
    return state, {"cancelled": order}


async def look(state: State, order: str) -> tuple[State, Any]:
    """Read an order."""
    await asyncio.sleep(0)
    return {**state, "_looked": True}, state["orders"][order]


def _call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def _reply(words: str) -> Message:
    return Message(role="assistant", content=words)


async def _play(world: TaskEnvironment, scenario: Scenario, actions: Sequence[Message]) -> StepResult:
    state = await world.reset(scenario)
    for action in actions:
        result = await world.step(state, action)
        state = result.state
    return result


def _outcome(world: TaskEnvironment, scenario: Scenario, *actions: Message) -> Outcome:
    return world.verify(asyncio.run(_play(world, scenario, actions)).state)


def _desk(**changes: Any) -> TaskEnvironment:
    return TaskEnvironment([ORDER], functions=(cancel, look), **changes)


IS_CANCELLED = {"cancelled": lambda state: state["orders"]["1"] == "cancelled"}


def test_criteria_on_the_state_end_the_episode_with_success():
    """At the call that makes them true."""
    result = asyncio.run(_play(_desk(criteria=IS_CANCELLED), ORDER, [_call("cancel", order="1")]))
    assert (result.terminated, result.truncated, result.state.done) == (True, False, True)
    assert _desk(criteria=IS_CANCELLED).verify(result.state).success


async def _later(state: State) -> bool:
    return False


@pytest.mark.parametrize(
    ("criterion", "shown"),
    [
        pytest.param(_later, "coroutine", id="a coroutine"),
        pytest.param(lambda state: (order == "sent" for order in state["orders"]), "generator", id="without any()"),
        pytest.param(lambda state: "False", "str", id="a text"),
        pytest.param(lambda state: float("nan"), "nan", id="NaN"),
        pytest.param(lambda state: state["orders"], "dict", id="what it looked at"),
    ],
)
def test_a_criterion_is_true_or_false(criterion: Any, shown: str):
    """Python takes each of these for true, so that every episode would be a success."""
    desk = _desk(criteria={"cancelled": criterion})
    with pytest.raises(OutcomeError, match=rf"criterion cancelled returned .*{shown}.*Return True or False"):
        _outcome(desk, ORDER, _reply("Done."))


def test_a_criterion_may_be_of_numpy_and_none_is_false():
    """NumPy's truth values, and what `get` returns for a missing key."""
    for result, expected in ((np.bool_(True), True), (None, False), (0, False)):
        desk = _desk(criteria={"cancelled": lambda state, result=result: result})
        assert _outcome(desk, ORDER, _reply("Done.")).success is expected


def test_a_criterion_cannot_change_the_world():
    def criterion(state: State) -> bool:
        return state.pop("orders") is None

    assert _outcome(_desk(criteria={"x": criterion}), ORDER, _reply("Done."), _reply("Bye.")).state == ORDER.world


def test_a_claim_does_not_complete_a_task():
    """An agent that only claims success has failed, however the conversation ends."""
    outcome = _outcome(_desk(criteria=IS_CANCELLED), ORDER, _reply("I have cancelled order 1."), _reply("Bye."))
    assert (outcome.success, dict(outcome.checks)) == (False, {"cancelled": False})


@pytest.mark.parametrize(("order", "success"), [("1", True), ("2", False)])
def test_the_expected_state_decides_success(order: str, success: bool):
    """Parts named in `expected.state` must be equal; others are free."""
    wanted = Expected(state={"orders": {"1": "cancelled", "2": "sent"}})
    scenario = ORDER.model_copy(update={"expected": wanted, "world": {**ORDER.world, "visits": 3}})
    assert _outcome(_desk(), scenario, _call("cancel", order=order)).success is success


def test_the_expected_calls_decide_by_their_final_state():
    """The right call among reading ones; one order too many is wrong."""
    wanted = Expected(calls=({"name": "cancel", "arguments": {"order": "1"}},))
    scenario = ORDER.model_copy(update={"expected": wanted, "world": {"orders": {"1": "open", "2": "open"}}})
    right = [_call("look", order="2"), _call("cancel", order="1"), _reply("Done.")]
    assert _outcome(_desk(), scenario, *right).success
    assert not _outcome(_desk(), scenario, *right, _call("cancel", order="2")).success
    assert not _outcome(_desk(), scenario, _reply("Done.")).success


def test_an_additional_part_of_the_state_is_wrong_unless_its_name_begins_with_an_underscore():
    """`look` leaves `_looked`, which is not compared; an unexpected note is."""

    def note(state: State) -> tuple[State, Any]:
        """Leave a note."""
        return {**state, "note": "hello"}, None

    world = TaskEnvironment(functions=(look, note))
    unchanged = ORDER.model_copy(update={"expected": Expected(reward_basis=("DB",))})
    assert _outcome(world, unchanged, _call("look", order="1")).success
    assert _outcome(world, unchanged, _call("note")).success is False


def test_doing_nothing_is_no_success_where_the_scenario_expects_nothing():
    """Success is None and named as not judged; `reward_basis: [DB]` says that an unchanged world is right."""
    silent = _outcome(_desk(), ORDER, _reply("Hm."))
    assert (silent.success, silent.unjudged, dict(silent.checks)) == (None, (NOTHING_EXPECTED,), {})
    explicit = ORDER.model_copy(update={"expected": Expected(reward_basis=("DB",))})
    assert _outcome(_desk(), explicit, _reply("Hm.")).success is True
    assert _outcome(_desk(), explicit, _call("cancel", order="1")).success is False


def test_expected_facts_must_be_communicated():
    """In a reply to the user, not in a call."""
    scenario = ORDER.model_copy(update={"expected": Expected(facts=("two days",))})
    assert _outcome(_desk(), scenario, _reply("In Two Days.")).success
    outcome = _outcome(_desk(), scenario, _call("cancel", order="two days"))
    assert dict(outcome.checks) == {"end_state": True, "facts_communicated": False}


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (_call("cancel", order="2"), "order 2 cannot be cancelled"),
        (_call("cancel", order=1), "cancel: order: 1 is not of type 'string'"),
        (_call("refund", order="1"), "unknown tool refund; there are cancel, look"),
        (HERMES.parse("<tool_call>{broken</tool_call>"), "not a tool call: {broken"),
    ],
)
def test_an_invalid_call_is_a_result_that_the_model_sees(action: Message, error: str):
    """Refused by the world, by the schema, by name, or unreadable: nothing has changed, and the episode continues."""
    result = asyncio.run(_play(_desk(), ORDER, [action]))
    assert result.response is not None
    assert result.response.role == "tool"
    assert json.loads(result.response.content) == {"error": error}
    assert result.state.world["orders"] == ORDER.world["orders"]
    assert not result.state.done


def test_a_function_changes_a_copy():
    """The state before the call and the scenario stay, though the function writes into its state."""

    async def run() -> None:
        world = _desk()
        before = await world.reset(ORDER)
        after = (await world.step(before, _call("cancel", order="1"))).state
        assert (before.world["orders"]["1"], after.world["orders"]["1"]) == ("open", "cancelled")
        assert ORDER.world["orders"]["1"] == "open"

    asyncio.run(run())


def test_an_exception_of_a_function_is_a_result_that_the_model_reads(caplog: pytest.LogCaptureFixture):
    """The state stays, the episode goes on, and the first one of a line of code is logged with its place."""
    result = asyncio.run(_play(_desk(), ORDER, [_call("look", order="7"), _call("look", order="8")]))
    assert result.response is not None
    assert json.loads(result.response.content) == {"error": {"type": "exception", "message": "KeyError: '8'"}}
    assert result.state.world["orders"] == ORDER.world["orders"]
    assert not result.state.done
    (line,) = [record.getMessage() for record in caplog.records if record.name == "grpo.agents.tools"]
    assert re.fullmatch(r"tool look, .*test_task.py:\d+: KeyError: '7'\. The model reads it as a result", line)


def test_an_exception_inside_a_library_is_logged_with_the_line_of_the_function(caplog: pytest.LogCaptureFixture):
    """In an episode with its scenario as well, once for each line of code."""

    def parse(state: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
        """Parse."""
        return state, json.loads(text)

    environment = TaskEnvironment(functions=[parse], criteria={})

    async def run() -> None:
        current_scenario.set("order-1")
        await _play(environment, ORDER, [_call("parse", text="{")])

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records if record.name == "grpo.agents.tools"]
    assert re.fullmatch(
        r"tool parse, .*test_task.py:\d+: JSONDecodeError: .*, in scenario order-1\. The model reads .*", line
    )


@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_that_hangs_ends_at_its_timeout(is_async: bool):
    """0.05 s of patience, for a function on a thread as for one on the event loop."""
    over = threading.Event()

    async def wait(state: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Wait."""
        await asyncio.sleep(3600)
        return state, "late"

    def sleep(state: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Sleep."""
        over.wait(240)
        return state, "late"

    function = wait if is_async else sleep
    world = TaskEnvironment(functions=[function], tool_timeout_s=0.05)

    async def play() -> StepResult:
        try:
            return await _play(world, ORDER, [_call(function.__name__)])
        finally:
            over.set()

    result = asyncio.run(play())
    assert result.response is not None
    message = f"{function.__name__} took longer than 0.05 s"
    assert json.loads(result.response.content) == {"error": {"type": "timeout", "message": message}}


@pytest.mark.parametrize(
    ("returned", "message"),
    [("shipped", "returned str. Return the state and the result"), (({}, {1}), "is not JSON: .* Return plain values")],
)
def test_a_function_that_returns_something_else_stops_the_run(returned: object, message: str):
    """It is wrong in every call; the error names the function and its file."""

    def look(state: dict[str, Any]) -> object:
        """Look."""
        return returned

    with pytest.raises(ConfigError, match=rf"tool look of .*test_task.py.*.*{message}"):
        asyncio.run(_play(TaskEnvironment(functions=[look]), ORDER, [_call("look")]))


def test_several_calls_of_one_turn_are_executed_in_order():
    """Their results come in one message, and the second call sees the effect of the first."""
    both = (ToolCall(name="cancel", arguments={"order": "1"}), ToolCall(name="look", arguments={"order": "1"}))
    result = asyncio.run(_play(_desk(), ORDER, [Message(role="assistant", content="", tool_calls=both)]))
    assert result.response is not None
    assert json.loads(result.response.content) == [{"cancelled": "1"}, "cancelled"]


def test_the_turn_limit_counts_calls_too():
    """Two turns: a call, and a call at the limit."""
    result = asyncio.run(_play(_desk(max_turns=2), ORDER, [_call("look", order="1")] * 2))
    assert (result.terminated, result.truncated) == (False, True)


def test_a_task_needs_tools():
    """Neither functions nor worlds, or both, is an error."""
    with pytest.raises(ConfigError, match="needs tools"):
        TaskEnvironment([ORDER])
    with pytest.raises(ConfigError, match="either"):
        TaskEnvironment(functions=(look,), worlds=load_worlds())


NOTES = Scenario(
    id="notes",
    context="Be brief.",
    user_responses=("How many words are in a.txt?",),
    tools=(
        {"name": "wc", "parameters": {"properties": {"file_name": {"type": "string"}, "mode": {"type": "string"}}}},
        {"name": "cat", "parameters": {"properties": {"file_name": {"type": "string"}}}},
    ),
    world={"GorillaFileSystem": {"root": {"r": {"type": "directory", "contents": {
        "a.txt": {"type": "file", "content": "one two"}}}}}},
    expected=Expected(calls=({"name": "wc", "arguments": {"file_name": "a.txt", "mode": "w"}},)),
)  # fmt: skip


def test_a_world_with_verified_results_requires_that_the_agent_saw_them():
    """No call changes this state, so the state alone would reward an agent that did not look."""
    world = TaskEnvironment(worlds=load_worlds())
    lazy, busy = _reply("Two."), _call("wc", file_name="a.txt", mode="w")
    assert dict(_outcome(world, NOTES, lazy).checks) == {"end_state": True, "answers_seen": False}
    assert _outcome(world, NOTES, busy, lazy).success


def test_a_scenario_offers_the_tools_that_it_names():
    """They are listed in the context, after the scenario's own; another tool of the same world does not exist."""

    async def run() -> None:
        world = make_environment(TaskSettings(kind="task"))
        state = await world.reset(NOTES)
        background, calling, *tools = state.context.splitlines()
        assert background == "Be brief."
        assert "<tool_call>" in calling
        assert [json.loads(tool)["name"] for tool in tools] == ["wc", "cat"]
        result = await world.step(state, _call("rm", file_name="a.txt"))
        assert result.response is not None
        assert "unknown tool rm" in result.response.content

    asyncio.run(run())


def test_a_scenario_whose_tools_no_world_has_is_not_playable():
    """The error names the tool."""
    scenario = NOTES.model_copy(update={"tools": (*NOTES.tools, {"name": "brew", "parameters": {}})})
    with pytest.raises(DataError, match="scenario notes is not playable: no world has brew"):
        asyncio.run(TaskEnvironment(worlds=load_worlds()).reset(scenario))


def test_a_scenario_whose_expected_call_fails_is_not_playable():
    """With verified results the agent would have to see an error."""
    wrong = NOTES.model_copy(update={"expected": Expected(calls=({"name": "cat", "arguments": {"file_name": "b"}},))})
    with pytest.raises(DataError, match=r"scenario notes is not playable.*cat: b: No such file"):
        asyncio.run(TaskEnvironment(worlds=load_worlds()).reset(wrong))


def test_a_tool_of_two_worlds_acts_on_the_one_in_the_scenario():
    """A trader's order 5 and a shop's order 5."""
    tool = {"name": "get_order_details", "parameters": {"properties": {"order_id": {}}}}
    desk = {"TradingBot": {"authenticated": True, "orders": {
        "5": {"symbol": "AAPL", "price": 1.0, "num_shares": 2, "status": "Open"}}}}  # fmt: skip
    shop = {"orders": {"5": {"order_id": "5", "status": "pending"}}, "users": {}, "products": {}}

    async def order(world: dict[str, Any], order_id: Any) -> Any:
        call = {"name": "get_order_details", "arguments": {"order_id": order_id}}
        scenario = NOTES.model_copy(update={"tools": (tool,), "world": world, "expected": Expected(calls=(call,))})
        (step,) = [step async for step in TaskEnvironment(worlds=load_worlds()).replay(scenario)]
        return step.result

    assert asyncio.run(order(desk, 5))["symbol"] == "AAPL"
    assert asyncio.run(order(shop, "5")) == {"order_id": "5", "status": "pending"}


def test_a_task_may_have_a_simulated_user():
    """A scenario with a goal instead of a script is played by rules."""
    scenario = NOTES.model_copy(update={"user_responses": (), "goal": "Count my words.\n- file name: a.txt"})
    state = asyncio.run(make_environment(TaskSettings(kind="task")).reset(scenario, seed=1))
    assert state.history[0].content == "Count my words."


LATE = NOTES.model_copy(
    update={
        "user_responses": ("How many words are in a.txt?", "There is a tool for it now.", "Thanks."),
        "tools": ({**NOTES.tools[0], "from_turn": 1}, NOTES.tools[1]),
    }
)


def test_a_tool_that_comes_later_is_unknown_before_its_turn_and_known_from_it_on():
    """`wc` comes with the user's second turn: the same call fails before and succeeds after."""

    async def run() -> tuple[dict[str, Any], dict[str, Any]]:
        world = TaskEnvironment(worlds=load_worlds())
        early = await world.step(await world.reset(LATE), _call("wc", file_name="a.txt", mode="w"))
        late = await world.step(
            (await world.step(early.state, _reply("I cannot."))).state, _call("wc", file_name="a.txt", mode="w")
        )
        assert early.response is not None
        assert late.response is not None
        return json.loads(early.response.content), json.loads(late.response.content)

    early, late = asyncio.run(run())
    assert early == {"error": "unknown tool wc; there are cat"}
    assert "error" not in late


def test_the_message_that_brings_a_tool_ends_with_its_schema():
    """The context lists the initial tools alone and stays; the next message has no schema."""

    async def run() -> tuple[str, list[str]]:
        world = TaskEnvironment(worlds=load_worlds())
        state = await world.reset(LATE)
        context = state.context
        state = (await world.step((await world.step(state, _reply("I cannot."))).state, _reply("Two."))).state
        assert state.context == context
        return context, [message.content for message in state.history if message.role == "user"]

    context, messages = asyncio.run(run())
    assert '"cat"' in context
    assert '"wc"' not in context
    words, schema = messages[1].splitlines()
    assert (words, json.loads(schema)["name"]) == ("There is a tool for it now.", "wc")
    assert messages[2] == "Thanks."


def test_a_tool_cannot_come_in_a_turn_that_the_script_does_not_have():
    """Turn 3 of three turns, 0 to 2, never comes."""
    tool = {**NOTES.tools[0], "from_turn": 3}
    with pytest.raises(ValueError, match="tool wc comes in user turn 3, which the script does not have"):
        Scenario.model_validate({**LATE.model_dump(), "tools": [tool]})


CANCELLING = {"name": "cancel", "arguments": {"order": "1"}}


def _based(*basis: str, **expected: Any) -> Scenario:
    """Scenario of cancelling an order, with this reward basis."""
    wanted = Expected.model_validate({"calls": [CANCELLING], "reward_basis": basis or None, **expected})
    return ORDER.model_copy(update={"expected": wanted})


def test_only_the_parts_of_the_reward_basis_decide():
    """A missing fact does not count where the basis leaves it out."""
    right = [_call("cancel", order="1"), _reply("Done.")]
    assert _outcome(_desk(), _based("DB", facts=["two days"]), *right) == Outcome(
        success=True, checks={"end_state": True}, state={"orders": {"1": "cancelled", "2": "sent"}}
    )
    both = _outcome(_desk(), _based("DB", "COMMUNICATE", facts=["two days"]), *right)
    assert (both.success, dict(both.checks)) == (False, {"end_state": True, "facts_communicated": False})


def test_success_with_assertions_is_left_open():
    """The state may be right or wrong: the part for the LLM judge is named, and success is None."""
    scenario = _based("DB", "NL_ASSERTION", assertions=["The agent is brief."])
    for actions, right in (([_call("cancel", order="1"), _reply("Done.")], True), ([_reply("Done.")], False)):
        outcome = _outcome(_desk(), scenario, *actions)
        assert (outcome.success, outcome.unjudged, dict(outcome.checks)) == (
            None,
            ("NL_ASSERTION",),
            {"end_state": right},
        )


def test_an_empty_list_of_assertions_passes():
    """72 of the published retail tasks have assertions in their basis and list none."""
    outcome = _outcome(_desk(), _based("DB", "NL_ASSERTION"), _call("cancel", order="1"), _reply("Done."))
    assert (outcome.success, outcome.unjudged) == (True, ())


def test_assertions_count_without_a_basis_too():
    """A scenario with assertions and no basis expects them."""
    outcome = _outcome(_desk(), _based(assertions=["The agent is brief."]), _call("cancel", order="1"), _reply("Done."))
    assert outcome.unjudged == ("NL_ASSERTION",)


@pytest.mark.parametrize(
    ("compared", "order", "made"), [(None, "1", True), (None, "2", False), (["order"], "2", False), ([], "2", True)]
)
def test_with_actions_in_the_basis_the_calls_must_have_been_made(compared: Any, order: str, made: bool):
    """In all arguments, or in the compared ones; a failed call was made too."""
    wish = CANCELLING if compared is None else {**CANCELLING, "compare_args": compared}
    outcome = _outcome(_desk(), _based("ACTION", calls=[wish]), _call("cancel", order=order), _reply("Done."))
    assert (outcome.success, dict(outcome.checks)) == (made, {"calls_made": made})


@pytest.mark.parametrize(
    ("world", "calls"),
    [
        ("MathAPI", [("add", {"a": 10**400, "b": 1.5})]),
        ("MathAPI", [("standard_deviation", {"numbers": [10**400, 1]})]),
        (
            "TicketAPI",
            [
                ("ticket_login", {"username": "a", "password": "b"}),
                ("create_ticket", {"title": "t"}),
                ("edit_ticket", {"ticket_id": 1, "updates": {"status": 5}}),
                ("get_user_tickets", {"status": "open"}),
            ],
        ),
    ],
)
def test_arguments_that_a_shipped_function_cannot_take_are_a_result(
    world: str, calls: list[tuple[str, dict[str, Any]]]
):
    """An integer of 400 digits, and a status that is no text: the model reads an error, and the episode goes on."""
    worlds = load_worlds()
    functions = next(one for one in worlds if one.state_key == world).functions
    tools = tuple(
        {"name": name, "parameters": dict(describe_function(functions[name]).parameters)} for name, _ in calls
    )
    case = Scenario(id="a", user_responses=("x",), tools=tools, world={world: {}}, expected=Expected(responses=("y",)))

    async def run() -> str:
        environment = TaskEnvironment(worlds=worlds)
        state = await environment.reset(case)
        for name, arguments in calls:
            result = await environment.step(state, _call(name, **arguments))
            state = result.state
        assert result.response is not None
        return result.response.content

    assert f"{calls[-1][0]} cannot take these arguments" in asyncio.run(run())
