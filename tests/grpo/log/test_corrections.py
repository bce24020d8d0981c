from __future__ import annotations

from grpo.log.corrections import Correction, corrections
from grpo.log.join import join
from grpo.log.records import Record
from grpo.messages import Message, ToolCall
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn


def collect(*records: Record) -> list[Correction]:
    return list(corrections(join(records).conversations))


def test_a_correction_has_the_messages_before_its_reply():
    """Of the second of two turns, and of the first."""
    second = collect(turn("a"), turn("b", "a"), feedback("f", turn_id="b", correction="No."))
    assert [(item.turn_id, item.reply.content, item.corrected.content) for item in second] == [
        ("b", "Answer b.", "No.")
    ]
    assert [message.content for message in second[0].prompt] == ["Question a?", "Answer a.", "Question b?"]
    [first] = collect(turn("a"), turn("b", "a"), feedback("f", turn_id="a", correction="No."))
    assert [message.content for message in first.prompt] == ["Question a?"]


def test_a_correction_of_the_conversation_is_one_of_its_last_reply():
    """One on that turn is nearer."""
    whole = feedback("f", correction="No.")
    [item] = collect(turn("a"), turn("b", "a"), whole)
    assert (item.turn_id, item.corrected.content) == ("b", "No.")
    [item] = collect(turn("a"), turn("b", "a"), whole, feedback("g", correction="Never.", turn_id="b"))
    assert item.corrected.content == "Never."


def test_a_correction_may_be_a_tool_call():
    """A reply is its text and its calls."""

    def call(order: str) -> Message:
        return Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": order}),))

    parts = tuple(
        Turn(message=message, start=0, stop=0) for message in (Message(role="user", content="Hi."), call("7"))
    )
    [item] = collect(turn("a", turns=parts), feedback("f", correction=call("8")))
    assert (item.reply, item.corrected) == (call("7"), call("8"))


def test_calls_of_the_agents_own_tools_belong_to_the_prompt():
    """The reply is the last message of the turn."""
    roles = ("user", "assistant", "tool", "assistant")
    parts = tuple(Turn(message=Message(role=role, content=role), start=0, stop=0) for role in roles)  # type: ignore[arg-type]
    [item] = collect(turn("a", turns=parts), feedback("f", correction="No."))
    assert [message.role for message in item.prompt] == ["user", "assistant", "tool"]
