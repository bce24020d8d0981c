"""Inputs with their outputs, as exports of data sets and evaluations write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.readers.chat_records import convert_chats
from grpo.scenarios.records import SourceRecord

USER = {"role": "user", "content": "Where is order 7?"}
LOST = {"role": "assistant", "content": "It is lost."}
CALL = {"id": "c", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}


def _record(data: dict[str, Any], **names: str) -> SourceRecord:
    settings = ChatSource(kind="input_output", path="x.jsonl", names=names)
    (record,) = convert_chats([SourceRecord(source="x.jsonl", line=1, data=data)], Path("x.jsonl"), settings)
    return record


def _turns(data: dict[str, Any], **names: str) -> tuple[list[str], list[str]]:
    fields = _record(data, **names).data
    assert fields is not None, _record(data, **names).problem
    return list(fields["user_responses"]), list(fields["expected"]["responses"])


CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "texts": ({"input": USER["content"], "output": "It is lost."}, {}),
    "messages": ({"input": [USER], "output": LOST}, {}),
    "messages as JSON": ({"input": '[{"role": "user", "content": "Where is order 7?"}]', "output": "It is lost."}, {}),
    "choices": ({"input": [USER], "output": [{"index": 0, "finish_reason": "stop", "message": LOST}]}, {}),
    "completion": ({"input": {"messages": [USER]}, "output": {"choices": [{"message": LOST}]}}, {}),
    "objects": ({"inputs": {"question": USER["content"]}, "outputs": {"answer": "It is lost."}},
                {"input": "inputs", "output": "outputs"}),
    "one unknown text": ({"input": {"frage": USER["content"]}, "output": {"antwort": "It is lost."}}, {}),
    "a message with data of its own": (
        {"input": [{"type": "human", "content": USER["content"], "data": {"page": 1}}], "output": "It is lost."}, {}),
    "instructions that are no text": (
        {"input": USER["content"], "output": "It is lost.", "instructions": {"tone": "kind"}}, {}),
    "a text next to objects and lists": (
        {"input": {"ticket_text": USER["content"], "customer": {"tier": "gold"}},
         "output": {"resolution": "It is lost.", "sources": ["x"]}}, {}),
    "expected": ({"input": USER["content"], "expected": "It is lost."}, {}),
    "a message is expected": ({"input": [USER], "ideal": LOST}, {"expected": "ideal"}),
    "inside": ({"fields": {"q": USER["content"], "a": "It is lost."}}, {"input": "fields.q", "output": "fields.a"}),
    "keys with dots": ({"a.in": USER["content"], "a.out": "It is lost."}, {"input": "a.in", "output": "a.out"}),
    "turns": ({"data": [USER["content"], "It is lost."]}, {"input": "data"}),
}  # fmt: skip


@pytest.mark.parametrize(("data", "names"), CASES.values(), ids=CASES)
def test_an_input_and_its_output_are_a_chat(data: dict[str, Any], names: dict[str, str]) -> None:
    """One question and its answer, in each form."""
    assert _turns(data, **names) == (["Where is order 7?"], ["It is lost."])


def test_what_is_expected_is_the_reference_and_not_the_reply_of_a_model() -> None:
    """The output is left out, and counted. All texts of a list are right."""
    data = {"input": "3 + 2?", "output": "6", "expected": ["5", "five"], "score": 0}
    assert _turns(data) == (["3 + 2?"], ["5", "five"])
    assert _record(data).ignored == (
        "record.output: the reply of some model, because expected is given",
        "record.score: unknown",
    )


def test_a_call_that_is_expected_is_an_expected_call() -> None:
    """And a call of an output is not, because a log does not show that it is right."""
    fields = _record({"input": [USER], "expected": {"content": None, "tool_calls": [CALL]}}).data
    assert fields is not None
    assert fields["expected"]["calls"] == [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0}]
    logged = _record({"input": [USER], "output": {"tool_calls": [CALL]}})
    assert logged.data is not None
    assert logged.data["expected"] == {"responses": []}
    assert "choice.message: a call that the log ends with, as it does not show that it is right" in logged.ignored


def test_what_is_not_read_of_an_object_is_counted() -> None:
    """Other fields of the input. A context becomes the system prompt."""
    record = _record({"input": {"question": "Why?", "context": "You are kind.", "user": 7}, "output": "So."})
    assert record.data is not None
    assert record.data["context"] == "You are kind."
    assert record.ignored == ("input.user: unknown",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"frage": "Why?"}, "no input: the record has frage. Name its key in the source's names"),
        ({"input": {"a": "x", "b": "y"}, "output": "z"},
         "no question in input: it has a, b. Name the user's text in names: input: input.NAME"),
        ({"input": "Why?", "output": {"a": "x", "b": "y"}}, "no answer in output: it has a, b"),
        ({"input": "Why?", "images": ["x.png"]}, "record.images cannot be read: content other than text is not read"),
        ({"input": [USER], "output": [LOST, USER]}, "several messages in output: 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_quarantined_with_the_remedy(data: dict[str, Any], reason: str) -> None:
    """The names of the record's own keys, and which setting names them."""
    record = _record(data)
    assert record.data is None
    assert reason in str(record.problem)


@pytest.mark.parametrize("reply", ['{"name": "Ann"}', "[2, 3, 5]", '{"answer": "4", "unit": "kg"}', '["a", "b"]'])
@pytest.mark.parametrize("key", ["output", "expected"])
def test_a_reply_that_is_json_stays_a_text(key: str, reply: str) -> None:
    """The agent has to write it like this."""
    assert _turns({"input": "As JSON", key: reply}) == (["As JSON"], [reply])


def test_an_input_that_is_json_stays_a_text() -> None:
    assert _turns({"input": '["x", "y"]', "output": "z"}) == (['["x", "y"]'], ["z"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"input": "Give two", "output": ["a", "b"]}, "several texts in output: 2"),
        ({"input": ["write", "rewrite it"], "output": "done"}, "2 texts in input: if user and agent speak in turn"),
    ],
)
def test_texts_that_can_be_read_in_two_ways_are_refused(data: dict[str, Any], reason: str) -> None:
    assert reason in (_record(data).problem or "")
