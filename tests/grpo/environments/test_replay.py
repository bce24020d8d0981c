"""Replay of logged conversations."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from grpo.config.environments import ReplaySettings
from grpo.config.rollout import RolloutSettings
from grpo.environments.catalog import find_unplayable, make_environment
from grpo.environments.environment import EnvironmentState
from grpo.environments.replay import ReplayEnvironment
from grpo.errors import BudgetError, DataError
from grpo.messages import Message, ToolCall
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.rollout.collect import collect
from grpo.scenario import Scenario
from grpo.trajectories import Outcome
from tests.places import DESK_MODEL

RECORDED = [
    {"name": "look_up", "arguments": {"order": "7", "detail": {"a": 1, "b": [2]}}, "result": {"state": "open"}},
    {"name": "state", "arguments": {}, "result": "open"},
    {"name": "state", "arguments": {}, "result": "closed"},
]
TOOLS = [{"name": name, "description": "", "parameters": {"type": "object"}} for name in ("look_up", "state")]


def scenario(**changes: Any) -> Scenario:
    """Two turns of the user, three recorded calls."""
    fields = {"id": "s", "user_responses": ["Where is it?", "Thanks."], "tools": TOOLS, "world": {"recorded": RECORDED}}
    return Scenario.model_validate({**fields, **changes})


def call(name: str, **arguments: Any) -> Message:
    """A turn of the agent with one call."""
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def play(scenario: Scenario, *actions: Message, max_turns: int = 30) -> tuple[EnvironmentState, Outcome, list[Any]]:
    """Apply these actions; returns the state, the outcome, and the results of the calls."""
    environment = ReplayEnvironment(max_turns=max_turns)

    async def run() -> EnvironmentState:
        state = await environment.reset(scenario)
        for action in actions:
            state = (await environment.step(state, action)).state
        return state

    state = asyncio.run(run())
    results = [json.loads(message.content) for message in state.history if message.role == "tool"]
    return state, environment.verify(state), results


def test_a_recorded_call_has_its_recorded_result() -> None:
    """Arguments in another order, and 1.0 for 1, are the same arguments."""
    _, outcome, results = play(scenario(), call("look_up", detail={"b": [2], "a": 1.0}, order="7"))
    assert results == [{"state": "open"}]
    assert outcome.state == {"calls": 1, "unrecorded_calls": 0}


def test_a_repeated_call_has_the_results_in_recorded_order() -> None:
    """Open, closed, and from then on closed."""
    _, _, results = play(scenario(), call("state"), call("look_up", order="7"), call("state"), call("state"))
    assert [results[0], *results[2:]] == ["open", "closed", "closed"]


def test_calls_of_one_turn_have_a_list_of_results() -> None:
    """The same call twice in one message."""
    twice = Message(role="assistant", content="", tool_calls=(ToolCall(name="state", arguments={}),) * 2)
    assert play(scenario(), twice)[2] == [["open", "closed"]]


def test_a_call_that_was_never_logged_is_answered_by_an_error() -> None:
    """It names the call and what was recorded; the outcome counts it, and the episode goes on."""
    state, outcome, results = play(scenario(), call("look_up", order="7"), call("refund"), call("state"))
    assert results[0] == {
        "error": 'not recorded: look_up(order="7") was never called in this log; recorded calls of look_up: '
        'look_up(order="7", detail={"a": 1, "b": [2]})'
    }
    assert results[1]["error"].endswith("refund() was never called in this log; recorded tools: look_up, state")
    assert outcome.state == {"calls": 3, "unrecorded_calls": 2}
    assert not state.done


def test_the_error_of_an_unlogged_call_is_bounded() -> None:
    """100,000 characters and 50 recorded calls: the first five, each at most 160 characters."""
    recorded = [{"name": "look_up", "arguments": {"order": f"{k}" * 500}, "result": k} for k in range(50)]
    _, _, results = play(scenario(world={"recorded": recorded}), call("look_up", order="x" * 100_000))
    assert len(results[0]["error"]) < 7 * 160 + 100
    assert results[0]["error"].endswith(", …")


def test_the_user_follows_the_script() -> None:
    """A reply gets the next line; the episode ends with the script."""
    reply = Message(role="assistant", content="It is open.")
    state, _, _ = play(scenario(), reply, call("state"), reply)
    assert [message.role for message in state.history] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert state.done


def test_an_episode_of_calls_is_cut_off() -> None:
    """At the second turn of the agent."""
    assert play(scenario(), call("state"), call("state"), max_turns=2)[0].done


def test_success_is_unknown_without_expected_calls() -> None:
    """A log does not show which calls were right; an assertion waits for its judge as well."""
    assert play(scenario(), call("state"))[1].unjudged == ("ACTION",)
    asserted = scenario(expected={"calls": [{"name": "state", "arguments": {}}], "assertions": ["The agent is kind."]})
    assert play(asserted, call("state"))[1].unjudged == ("NL_ASSERTION",)


@pytest.mark.parametrize(("actions", "success"), [((call("state"),), True), ((), False)])
def test_expected_calls_decide_the_success(actions: tuple[Message, ...], success: bool) -> None:
    """Made, or not made."""
    expected = {"calls": [{"name": "state", "arguments": {}, "turn": 0}]}
    outcome = play(scenario(expected=expected), *actions)[1]
    assert (outcome.success, outcome.checks) == (success, {"calls_made": success})


def test_expected_facts_must_be_communicated_too() -> None:
    """In the agent's text, not in a result."""
    expected = {"calls": [{"name": "state", "arguments": {}}], "facts": ["closed"]}
    silent = play(scenario(expected=expected), call("state"))[1]
    assert silent.checks == {"calls_made": True, "facts_communicated": False}
    spoken = Message(role="assistant", content="It is closed.")
    assert play(scenario(expected=expected), call("state"), spoken)[1].success


def test_parts_of_a_reward_basis_that_a_log_cannot_verify_stay_open() -> None:
    """The state of a world does not exist there."""
    expected = {"calls": [{"name": "state", "arguments": {}}], "reward_basis": ["DB", "ACTION"]}
    outcome = play(scenario(expected=expected), call("state"))[1]
    assert (outcome.checks, outcome.unjudged) == ({"calls_made": True}, ("DB",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world": {"recorded": {}}}, "world.recorded is dict, not a list"),
        ({"world": {"recorded": [{"name": "a"}]}}, "world.recorded.0 has no name with arguments"),
        ({"world": {"recorded": [{"name": "a", "arguments": {}}]}}, "world.recorded.0, a call of a, has no result"),
        ({"user_responses": [], "goal": "x"}, "has a goal but no script"),
    ],
)
def test_a_scenario_that_cannot_be_replayed_is_refused_before_it_is_played(changes: Any, message: str) -> None:
    """With the place in it."""
    with pytest.raises(DataError, match=message):
        asyncio.run(ReplayEnvironment().check(scenario(**changes)))
    with pytest.raises(BudgetError, match=f"cannot be played in environment replay.*{message}"):
        find_unplayable(ReplaySettings(kind="replay"), [scenario(**changes)], max_fraction=0.1)


def test_the_shipped_tiny_model_replays_a_log() -> None:
    """Two samples of a scenario: the tools are in the prompt, tokens are as sampled, the calls are counted."""
    policy = load(DESK_MODEL)
    environment = make_environment(ReplaySettings(kind="replay", max_turns=2))
    settings = RolloutSettings(max_new_tokens=8, max_context=2000, on_truncation="continue", error_budget=0.0)
    renderer = Renderer(policy.tokenizer, tools=environment.tools)
    trajectories = collect(
        [scenario()], policy, environment, renderer, settings, group_size=2, temperature=1.0, run_seed=1, iteration=0
    )
    assert len(trajectories) == 2
    for trajectory in trajectories:
        assert '"name": "look_up"' in trajectory.turns[0].message.content
        assert trajectory.completion_tokens > 0
        assert trajectory.outcome is not None
        assert trajectory.outcome.success is None
        assert trajectory.outcome.state.keys() == {"calls", "unrecorded_calls"}
