"""Records become items or are quarantined, and their numbers add up."""

from __future__ import annotations

import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.quarantine import parse_records
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.reward_data import LabelledReply


def record(line: int, **more: object) -> SourceRecord:
    """A labelled reply at this line."""
    data = {
        "id": str(line),
        "group": "g",
        "prompt": [Message(role="user", content="Hi.")],
        "reply": Message(role="assistant", content="Hello."),
        "label": "good",
        "category": "c",
        "source": "s",
        "licence": "l",
    }
    return SourceRecord(source="file", line=line, data={**data, **more})


def test_every_record_is_an_item_or_quarantined_with_place_and_reason() -> None:
    """Of two with the same id the first is used; an unreadable record keeps its reader's message."""
    broken = SourceRecord(source="file", line=4, data=None, problem="broken: byte 7")
    parsed = parse_records([record(1), record(2, id="1"), record(3, colour="red"), broken], LabelledReply)
    assert [item.id for item in parsed.items] == ["1"]
    assert [(place.source, place.line, place.reason.message) for place in parsed.quarantined] == [
        ("file", 2, "duplicate id: 1"),
        ("file", 3, "unknown field: colour"),
        ("file", 4, "broken: byte 7"),
    ]
    assert parsed.records == 4
    assert parsed.reasons == {"duplicate id": 1, "unknown field": 1, "broken": 1}


def test_a_reply_needs_text_or_a_tool_call() -> None:
    """A reply of white space is quarantined."""
    silent = Message(role="assistant", content=" \n")
    calling = Message(role="assistant", content="", tool_calls=(ToolCall(name="look", arguments={}),))
    parsed = parse_records([record(1, reply=silent), record(2, label=""), record(3, reply=calling)], LabelledReply)
    assert [item.id for item in parsed.items] == ["3"]
    assert parsed.reasons == {
        "reply: reply is empty": 1,
        "label: String should have at least N character": 1,
    }


def test_an_empty_source_is_an_error() -> None:
    """A file without records is a mistake."""
    with pytest.raises(DataError, match="no record for LabelledReply"):
        parse_records([], LabelledReply)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_a_number_is_quarantined(score: float) -> None:
    """NaN cannot be ordered."""
    parsed = parse_records([record(1), record(2, score=score)], LabelledReply)
    assert [place.reason.message for place in parsed.quarantined] == ["score: Input should be a finite number"]
