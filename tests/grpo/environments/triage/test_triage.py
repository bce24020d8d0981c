from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from grpo.config.environments import Team, TriageSettings
from grpo.environments.catalog import make_environment
from grpo.environments.environment import EnvironmentState
from grpo.environments.triage.triage import TriageEnvironment
from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenario import Metadata, Scenario
from grpo.trajectories import Outcome
from tests.grpo.environments.actions import play, reply

TEAMS = (Team(name="billing", handles="invoices", categories=("invoice", "payment")), Team(name="repairs"))
CLEAR, VAGUE = ("The kettle leaks.",), ("I have a problem.", "The kettle leaks.")


def case(lines: tuple[str, ...], category: str = "repairs") -> Scenario:
    return Scenario(id="s", user_responses=lines, metadata=Metadata(category=category))


def route(*teams: str) -> Message:
    calls = tuple(ToolCall(name="route", arguments={"team": team}) for team in teams)
    return Message(role="assistant", content="", tool_calls=calls)


def route_by(scenario: Scenario, *actions: Message) -> tuple[EnvironmentState, Outcome]:
    """Apply these actions to the two teams."""
    return play(TriageEnvironment(TEAMS), scenario, *actions)


@pytest.mark.parametrize(
    ("scenario", "actions"),
    [
        (case(CLEAR), (route("repairs"),)),
        (case(CLEAR, "payment"), (route("billing"),)),  # the team that lists the category
        (case(VAGUE), (reply("What is it about?"), route("repairs"))),
        (case(VAGUE), (reply("Please tell me more."), route("repairs"))),  # a request asks as well
    ],
)
def test_the_right_team_succeeds_after_the_questions_that_were_needed(scenario: Scenario, actions: tuple[Message, ...]):
    """None for a clear opening, one for a vague one."""
    state, outcome = route_by(scenario, *actions)
    assert state.done
    assert outcome.success


@pytest.mark.parametrize(
    ("scenario", "actions", "failed"),
    [
        (case(CLEAR), (route("billing"),), {"right_team"}),
        (case(CLEAR), (route("billing", "repairs"),), {"routed_once", "right_team"}),  # not to both
        (case(VAGUE), (route("repairs"),), {"asked_as_needed"}),  # a lucky guess
        (case(CLEAR), (reply("What is it about?"),), {"routed_once", "right_team", "asked_as_needed"}),
        (case(CLEAR), (reply("We will see."),), {"routed_once", "right_team"}),
        (case(VAGUE), (reply("What?"), reply("What?")), {"routed_once", "right_team", "asked_as_needed"}),
    ],
)
def test_everything_else_fails(scenario: Scenario, actions: tuple[Message, ...], failed: set[str]):
    """A wrong team, two teams, a guess, a needless question, talk, a question that was answered."""
    state, outcome = route_by(scenario, *actions)
    assert state.done
    assert {name for name, passed in outcome.checks.items() if not passed} == failed


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Message(role="assistant", content="<tool_call>{", malformed="not a tool call: {"), "not a tool call: {"),
        (route("kitchen"), "kitchen"),
        (Message(role="assistant", content="", tool_calls=(ToolCall(name="refund", arguments={}),)), "unknown tool"),
    ],
)
def test_an_invalid_call_returns_an_error_and_may_be_corrected(action: Message, error: str):
    """The next call still counts; the third turn of the agent is the last."""
    state, outcome = route_by(case(CLEAR), action, route("repairs"))
    assert outcome.success
    assert error in state.history[2].content
    cut, outcome = route_by(case(CLEAR), action, action, action)
    assert cut.done
    assert not outcome.success


def test_the_customer_answers_a_question_with_the_second_line():
    """And with nothing else."""
    state, _ = route_by(case(VAGUE), reply("What is it about?"))
    assert [message.content for message in state.history] == [VAGUE[0], "What is it about?", VAGUE[1]]


def test_a_scenario_without_a_team_or_a_script_is_refused():
    """By its category, with the remedy."""
    triage = TriageEnvironment(TEAMS)
    with pytest.raises(DataError, match=r"no team handles category repair\. Add it to the categories of a team"):
        asyncio.run(triage.check(case(CLEAR, "repair")))
    with pytest.raises(DataError, match="has no script"):
        asyncio.run(triage.check(Scenario(id="s", goal="A refund.", metadata=Metadata(category="repairs"))))


def test_a_category_belongs_to_one_team():
    """The second owner is named."""
    with pytest.raises(ValidationError, match=r"category card belongs to teams card and cash\. Keep one"):
        TriageSettings(kind="triage", teams=(Team(name="card"), Team(name="cash", categories=("card",))))


def test_the_agent_is_shown_its_teams():
    """In the schema of the tool, and with their matters in the system prompt."""
    settings = TriageSettings(kind="triage", teams=TEAMS, system_prompt="Route.")
    triage = make_environment(settings)
    assert triage.system_prompt == "Route.\nbilling: invoices"
    assert triage.tools[0].parameters["properties"]["team"]["enum"] == ["billing", "repairs"]
