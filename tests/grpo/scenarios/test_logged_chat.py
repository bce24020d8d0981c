"""Logged chats as scenarios."""

from __future__ import annotations

import pytest

from grpo.environments.users.simulated_user import parse_goal
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from grpo.scenarios.logged_chat import (
    MAX_MESSAGES,
    ChatOrigin,
    LoggedCall,
    LoggedChat,
    LoggedMessage,
    chat_fields,
    json_value,
    record_calls,
)


def user(text: str) -> LoggedMessage:
    """A turn of the user."""
    return LoggedMessage(role="user", content=text)


def agent(text: str, *calls: LoggedCall) -> LoggedMessage:
    """A turn of the agent."""
    return LoggedMessage(role="assistant", content=text, tool_calls=calls)


def result(text: str, answers: str | None = None) -> LoggedMessage:
    """The result of a call."""
    return LoggedMessage(role="tool", content=text, answers=answers)


def look_up(order: str, id: str | None = None) -> LoggedCall:
    """A call."""
    return LoggedCall(name="look_up", arguments={"order": order}, id=id)


CHAT = (
    LoggedMessage(role="system", content="You run the desk."),
    agent("Hello!"),
    user("Where is order 7?"),
    agent("", look_up("7", "c1")),
    result('{"state": "lost"}', "c1"),
    agent("It is lost."),
    user("Then I want\nmy money back."),
    agent("", look_up("7", "c2"), look_up("8", "c3")),
    result("none", "c3"),
    result("lost", "c2"),
    agent("Done."),
)


def test_a_chat_becomes_a_scripted_scenario() -> None:
    """Turns, context, references, inferred tools, and calls with the results that name them by id."""
    fields = chat_fields(LoggedChat(messages=CHAT), users="script")
    assert fields["user_responses"] == ["Where is order 7?", "Then I want\nmy money back."]
    assert fields["context"] == "You run the desk.\n\nYou opened the conversation: Hello!"
    assert fields["expected"] == {"responses": ["It is lost.", "Done."]}
    assert [tool["name"] for tool in fields["tools"]] == ["look_up"]
    assert fields["world"] == {
        "recorded": [
            {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": {"state": "lost"}},
            {"name": "look_up", "arguments": {"order": "7"}, "turn": 1, "result": "lost"},
            {"name": "look_up", "arguments": {"order": "8"}, "turn": 1, "result": "none"},
        ]
    }
    Scenario.model_validate({**fields, **ChatOrigin(id="a", source="x").fields()})


def test_a_goal_is_in_the_words_of_the_user() -> None:
    """The first turn opens; the later ones are told when the agent asks."""
    fields = chat_fields(LoggedChat(messages=CHAT), users="goal")
    assert "user_responses" not in fields
    goal = parse_goal(fields["goal"])
    assert goal.opening == "Where is order 7?"
    assert dict(goal.facts) == {"known": "Then I want my money back."}


def test_a_first_turn_in_the_form_of_a_fact_is_still_the_opening() -> None:
    """`- order: 7` would be a hidden fact on a line of its own."""
    fields = chat_fields(LoggedChat(messages=(user("- order: 7"), agent("Yes?"))), users="goal")
    assert parse_goal(fields["goal"]).opening == "- order: 7"


def test_results_without_ids_answer_the_calls_in_order() -> None:
    """Two calls, two results."""
    chat = (user("Both?"), agent("", look_up("7"), look_up("8")), result("1"), result("2"), agent("Yes."))
    recorded = chat_fields(LoggedChat(messages=chat), users="script")["world"]["recorded"]
    assert [(call["arguments"]["order"], call["result"]) for call in recorded] == [("7", 1), ("8", 2)]


def test_a_declared_tool_keeps_its_schema() -> None:
    """Only tools that were called and not declared are inferred."""
    declared = {"name": "look_up", "description": "Look up.", "parameters": {"type": "object", "properties": {}}}
    fields = chat_fields(LoggedChat(messages=CHAT, tools=(declared,)), users="script")
    assert fields["tools"] == [declared]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((agent("Hi."),), "no user turn"),
        ((user("Hi."), agent("", look_up("7", "c1"))), "unanswered tool call: look_up, id c1"),
        ((user("Hi."), agent("", look_up("7", "c1")), user("Well?"), result("x", "c1")), "unanswered tool call"),
        ((user("Hi."), result("x", "c1")), "orphaned tool result: message 1, for id c1"),
        ((user("Hi."), agent("", look_up("7", "c1")), result("x", "c2")), "Calls that wait for one: c1"),
        ((user("Hi."), agent("", look_up("7", "c")), result("x", "c"), result("y", "c")), "orphaned tool result"),
        ((user("Hi."),) * (MAX_MESSAGES + 1), "over-long chat: 2001 messages, at most 2000"),
        ((user("Hi."), agent("", *[look_up("7")] * 2001)), "too many calls: 2001 in message 1"),
    ],
)
def test_a_broken_chat_is_refused_with_its_reason(messages: tuple[LoggedMessage, ...], problem: str) -> None:
    """Nothing is repaired."""
    with pytest.raises(ValueError, match=problem):
        chat_fields(LoggedChat(messages=messages), users="script")


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": [1]}', {"a": [1]}), ("7", 7), ("1.10", "1.10"), ("lost", "lost"), ("NaN", "NaN"), ("[" * 500, "[" * 500)],
)
def test_a_result_that_is_json_is_its_value(text: str, value: object) -> None:
    """Any other text stays text."""
    assert json_value(text) == value


def test_category_licence_and_consent_come_from_the_log() -> None:
    """Values that are not text are left out."""
    origin = ChatOrigin(id="a", source="x", metadata={"category": "delivery", "license": "own", "consent": 1})
    assert origin.fields()["metadata"] == {"category": "delivery", "source": "x", "licence": "own", "consent": ""}


def test_our_own_messages_have_the_results_of_several_calls_as_one_list():
    """As the server and the environments join them. A list that is the result of the first of two calls is its own."""
    calls = (ToolCall(name="look_up", arguments={"order": "7"}), ToolCall(name="look_up", arguments={"order": "8"}))
    asked = Message(role="assistant", content="", tool_calls=calls)
    joined = [asked, Message(role="tool", content='[{"state": "lost"}, "none"]')]
    assert [call["result"] for call in record_calls(joined)] == [{"state": "lost"}, "none"]
    apart = [asked, Message(role="tool", content="[1, 2]"), Message(role="tool", content="none")]
    assert [call["result"] for call in record_calls(apart)] == [[1, 2], "none"]
    with pytest.raises(ValueError, match="unanswered tool call"):
        record_calls([asked, Message(role="tool", content="[1, 2, 3]")])
    three = Message(role="assistant", content="", tool_calls=(*calls, calls[0]))
    with pytest.raises(ValueError, match="unanswered tool call"):
        record_calls([three, Message(role="tool", content="a"), Message(role="tool", content="[1, 2]")])
    with pytest.raises(ValueError, match="unanswered tool call"):
        record_calls([agent("", look_up("7"), look_up("8")), result("[1, 2]")])
