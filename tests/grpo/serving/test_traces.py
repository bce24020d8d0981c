"""Traces of turns and assessments of feedback, without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import AssessmentSource, Expectation, TraceInfo
from mlflow.entities import Feedback as Assessed

from grpo.errors import DataError
from grpo.log.records import ServedTurn
from grpo.messages import Message, ToolCall
from grpo.serving.mirror.redacted import Redaction
from grpo.serving.mirror.traces import assessments, feedback_record, is_from_page, spans, trace_id, trace_info
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn
from tests.grpo.log.test_compaction import write

SECOND = 1_000_000_000


def with_messages(served: ServedTurn, *messages: Message) -> ServedTurn:
    parts = tuple(Turn(message=message, start=4, stop=4) for message in messages)
    return replace(served, turns=parts)


def messages_of(served: ServedTurn) -> list[Message]:
    return [part.message for part in served.turns]


def info_of(served: ServedTurn) -> TraceInfo:
    return trace_info(served, messages_of(served), "7")


def assessment(name: str, value: Any, *, kind: Any = Assessed, **changes: Any) -> Any:
    source = AssessmentSource(source_type="HUMAN", source_id="anna")
    made = kind(name=name, value=value, source=source, create_time_ms=1000, last_update_time_ms=1000, **changes)
    made.assessment_id = "a-1"
    return made


def test_a_call_that_the_server_ran_is_a_span_of_its_turn():
    """Two calls with their results; half a second from noon on; the call of the client's tool is in the reply alone."""
    calls = (ToolCall(name="look_up", arguments={"order": "1"}), ToolCall(name="stock", arguments={}))
    served = with_messages(
        turn("a"),
        Message(role="user", content="Where?"),
        Message(role="assistant", content="", tool_calls=calls),
        Message(role="tool", content="sent"),
        Message(role="tool", content="none"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="pay", arguments={"sum": 2}),)),
    )
    root, first, second = spans(served, messages_of(served))
    assert root.inputs == {"messages": [{"role": "user", "content": "Where?"}]}
    assert root.outputs["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "pay"
    assert [(span.name, span.inputs, span.outputs) for span in (first, second)] == [
        ("look_up", {"order": "1"}, "sent"),
        ("stock", {}, "none"),
    ]
    assert {span.parent_id for span in (first, second)} == {root.span_id}
    assert root.end_time_ns - root.start_time_ns == SECOND // 2
    assert len({span.span_id for span in (root, first, second)}) == 3
    assert {span.trace_id for span in (root, first, second)} == {info_of(served).trace_id} == {trace_id("a")}


def test_usage_counts_the_tokens_of_earlier_turns():
    """Four tokens before, four of this turn, of which two were generated: 6 read and 2 generated."""
    usage = info_of(turn("b", "a")).token_usage
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (6, 2, 8)


def test_a_failed_turn_has_a_trace_without_the_text_of_its_error():
    """An error may quote what a user wrote."""
    empty = {"token_ids": np.zeros(0, np.int32), "loss_mask": np.zeros(0, bool)}
    served = replace(
        turn("a"), status="failed", reason="KeyError: 'Anna'", turns=(), sampler_logprobs=np.zeros(0, "f4"), **empty
    )
    info = info_of(served)
    assert (info.state, info.tags["grpo.finish_reason"]) == ("ERROR", "failed")
    assert "Anna" not in str(info.to_dict())


SENT = Message(role="assistant", content="Sent.")
CALL = Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "7"}),))
CALLED = {"content": "", "tool_calls": [{"name": "look_up", "arguments": {"order": "7"}}]}


def test_a_corrected_call_is_an_expectation_with_its_arguments():
    """A text is one as it is."""
    [made] = assessments(feedback("f", turn_id="a", correction=CALL))
    assert made.value == CALLED


def test_feedback_has_one_assessment_of_each_field():
    """On a turn; with the same ids whenever it is sent."""
    given = feedback("f", turn_id="a", rating=0.5, comment="late", correction="Sent.", success=False)
    made = assessments(given)
    assert {(item.name, item.value, type(item)) for item in made} == {
        ("rating", 0.5, Assessed),
        ("comment", "late", Assessed),
        ("success", False, Assessed),
        ("correction", "Sent.", Expectation),
    }
    ids = [item.assessment_id for item in made]
    assert ids == [item.assessment_id for item in assessments(given)]
    assert len(set(ids)) == 4
    assert not any(map(is_from_page, made))
    made[0].last_update_time_ms += 1
    assert is_from_page(made[0])  # edited by a person


@pytest.mark.parametrize(
    ("name", "value", "kind", "field", "expected"),
    [
        ("rating", True, Assessed, "rating", 1.0),
        ("rating", 0.25, Assessed, "rating", 0.25),
        ("success", "no", Assessed, "success", False),
        ("success", True, Assessed, "success", True),
        ("comment", "slow", Assessed, "comment", "slow"),
        ("expected_response", "Sent.", Expectation, "correction", SENT),
        ("correction", "Sent.", Expectation, "correction", SENT),
        ("correction", CALLED, Expectation, "correction", CALL),
    ],
)
def test_values_of_the_page_become_those_of_feedback(name: str, value: Any, kind: Any, field: str, expected: Any):
    """On the turn of the trace, at the time of the last update."""
    record = feedback_record(assessment(name, value, kind=kind), info_of(turn("a")))
    assert getattr(record, field) == expected
    assert (record.conversation_id, record.turn_id, record.source) == ("c", "a", "mlflow")
    assert record.time.timestamp() == 1


def test_an_edit_is_another_record_and_an_assessment_of_a_session_is_on_the_conversation():
    """The id is of the assessment and its last update."""
    info = info_of(turn("a"))
    first = feedback_record(assessment("rating", 1), info)
    edited = assessment("rating", 1, metadata={"mlflow.trace.session": "c"})
    edited.last_update_time_ms = 2000
    second = feedback_record(edited, info)
    assert first.id != second.id
    assert (first.turn_id, second.turn_id) == ("a", None)
    assert feedback_record(assessment("rating", 0), info).id == first.id


@pytest.mark.parametrize(("name", "value"), [("rating", 7), ("rating", "good"), ("success", 1), ("comment", 3)])
def test_a_value_that_its_name_does_not_take_is_refused(name: str, value: Any):
    """With value, place and remedy."""
    with pytest.raises(DataError, match=rf"assessment a-1 of trace .*: {name} is .*A rating is a number from 0 to 1"):
        feedback_record(assessment(name, value), info_of(turn("a")))


def test_judges_other_names_and_overridden_assessments_are_left():
    """Only what a person holds is feedback."""
    judge = assessment("rating", 1)
    judge.source = AssessmentSource(source_type="LLM_JUDGE", source_id="judge")
    assert is_from_page(assessment("rating", 1))
    assert not is_from_page(judge)
    assert not is_from_page(assessment("relevance", 1))
    assert not is_from_page(assessment("rating", 1, valid=False))


def test_a_name_of_an_earlier_turn_is_redacted_also_after_a_restart(tmp_path: Path):
    """The reply repeats a name without its introduction; the second reader has the second turn alone."""
    first = with_messages(
        turn("a"), Message(role="user", content="My name is Anna."), Message(role="assistant", content="Hi")
    )
    second = with_messages(
        turn("b", "a"), Message(role="user", content="Thanks"), Message(role="assistant", content="Bye Anna")
    )
    write(tmp_path, first, second)
    known, restarted = Redaction(tmp_path), Redaction(tmp_path)
    known.prepare([first, second])
    restarted.prepare([second])
    for redaction in (known, restarted):
        assert [message.content for message in redaction.messages(second)] == ["Thanks", "Bye [name]"]
    assert [message.content for message in known.messages(first)] == ["My name is [name].", "Hi"]
    comment = known.feedback(feedback("f", comment="Anna was angry", world={"name": "Anna"}))
    assert (comment.comment, comment.world) == ("[name] was angry", None)
    assert restarted.first_turn("c") == "a"
