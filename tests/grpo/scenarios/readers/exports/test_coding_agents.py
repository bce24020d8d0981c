"""Sessions of goose and opencode: results in each form, summaries, and what is not a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import GOOSE, OPENCODE


def read(tmp_path: Path, document: Any) -> SourceRecord:
    """The record of a document."""
    path = tmp_path / "session.json"
    path.write_text(json.dumps(document))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def goose(*messages: Any) -> dict[str, Any]:
    """A session of goose as a document, which newer versions export."""
    return {"id": "s", "working_dir": "/shop", "conversation": messages}


def opencode(*messages: Any) -> dict[str, Any]:
    return {"info": {"id": "s"}, "messages": messages}


def tool(**state: Any) -> dict[str, Any]:
    """A message of opencode with a call in this state."""
    part = {"type": "tool", "callID": "c1", "tool": "look_up", "state": {"input": {"order": "7"}, **state}}
    return {"info": {"role": "assistant"}, "parts": [part]}


SUMMARY_OF_GOOSE = {"role": "user", "content": [{"type": "text", "text": "Earlier: order 7."}],
                    "metadata": {"userVisible": False, "agentVisible": True}}  # fmt: skip
SUMMARY_OF_OPENCODE = {"info": {"role": "user"}, "parts": [{"type": "compaction", "auto": True}]}


@pytest.mark.parametrize(
    "session", [goose(*GOOSE, SUMMARY_OF_GOOSE, GOOSE[0]), opencode(*OPENCODE, SUMMARY_OF_OPENCODE, OPENCODE[0])]
)
def test_a_session_is_read_up_to_its_first_summary(tmp_path: Path, session: Any):
    """The model read the summary in the turns after it."""
    record = read(tmp_path, session)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": [DONE]})
    assert "record: turns after a summary, which the model read instead of the earlier turns" in record.ignored


@pytest.mark.parametrize(
    "session",
    [
        goose(GOOSE[0], GOOSE[1], {**GOOSE[2], "content": [
            {"type": "toolResponse", "id": "c1", "toolResult": {"status": "error", "error": "no order 7"}}]}, GOOSE[3]),
        goose(GOOSE[0], GOOSE[1], {**GOOSE[2], "content": [{"type": "toolResponse", "id": "c1", "toolResult": {
            "status": "success", "value": {"content": [{"type": "text", "text": "no order 7"}], "isError": True}}}]},
            GOOSE[3]),
        opencode(OPENCODE[0], tool(status="error", error="no order 7"), OPENCODE[-1]),
    ],
)  # fmt: skip
def test_the_error_of_a_call_is_its_result(tmp_path: Path, session: Any):
    """The model read it."""
    record = read(tmp_path, session)
    assert record.data is not None, record.problem
    assert record.data["world"]["recorded"][0]["result"] == "no order 7"


def test_a_reply_that_opencode_could_not_finish_is_no_reference(tmp_path: Path):
    """And a text that its user hid from the model is not said."""
    hidden = {"type": "text", "text": "a note", "ignored": True}
    reply = {"info": {"role": "assistant", "error": {"name": "MessageAbortedError"}}, "parts": [
        hidden, {"type": "text", "text": DONE}]}  # fmt: skip
    record = read(tmp_path, opencode(OPENCODE[0], reply))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": []}


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        (goose({"role": "user", "content": [{"type": "image", "data": ""}]}), "content is not text: part image in"),
        (
            goose(GOOSE[0], {"role": "assistant", "content": [{"type": "toolRequest", "id": "c", "toolCall": {
                "status": "error", "error": "x"}}]}),
            "a call of message 1 could not be parsed by goose",
        ),
        (opencode({"info": {"role": "user"}, "parts": [{"type": "file"}]}), "content is not text: part file in"),
        (opencode(OPENCODE[0], tool(status="running"), OPENCODE[-1]), "unanswered tool call: look_up"),
    ],
)  # fmt: skip
def test_what_is_not_whole_quarantines_the_session(tmp_path: Path, session: Any, problem: str):
    """With the number of the message."""
    assert (read(tmp_path, session).problem or "").startswith(problem)
