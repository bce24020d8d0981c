"""Chats of Big-AGI: versions before fragments, and what is not a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import big_agi_text


def read(tmp_path: Path, *messages: Any) -> SourceRecord:
    """The record of a chat."""
    path = tmp_path / "a.agi.json"
    path.write_text(json.dumps({"id": "c", "systemPurposeId": "Generic", "messages": messages, "created": 1}))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def message(role: str, *fragments: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "fragments": fragments, **fields}


def content(kind: str, **fields: Any) -> dict[str, Any]:
    return {"ft": "content", "part": {"pt": kind, **fields}}


QUESTION, REPLY = message("user", big_agi_text(ASKED)), message("assistant", big_agi_text(DONE))


def test_a_chat_from_before_fragments_has_its_texts(tmp_path: Path):
    """Of version 1."""
    record = read(tmp_path, *({"role": role, "text": text, "sender": "x", "typing": False} for role, text in (
        ("system", "Be kind."), ("user", ASKED), ("assistant", DONE))))  # fmt: skip
    assert record.data is not None, record.problem
    fields = (record.data["context"], record.data["user_responses"], record.data["expected"]["responses"])
    assert fields == ("Be kind.", [ASKED], [DONE])


@pytest.mark.parametrize("mark", [{"pendingIncomplete": True}, {"generator": {"tokenStopReason": "out-of-tokens"}}])
def test_a_reply_that_was_stopped_is_no_reference(tmp_path: Path, mark: dict[str, Any]):
    """By the user, an error, or the limit of tokens."""
    record = read(tmp_path, QUESTION, {**REPLY, **mark})
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": []}


def test_an_error_that_the_page_shows_is_not_said(tmp_path: Path):
    """It is counted."""
    record = read(tmp_path, QUESTION, message("assistant", content("error", error="offline"), big_agi_text(DONE)))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": [DONE]}
    assert "message.fragments: errors that only the user saw" in record.ignored


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([message("user", {"ft": "attachment", "part": {"pt": "doc"}}), REPLY], "content is not text: part doc in"),
        ([QUESTION, message("assistant", content("image_ref"))], "content is not text: part image_ref in message 1"),
        ([QUESTION, message("assistant", {"ft": "content"})], "a fragment of message 1 has no part"),
        (
            [QUESTION, message("assistant", content("tool_invocation", id="1", invocation={"type": "code_execution"}))],
            "a call of type code_execution, which the API ran itself, cannot be read: message 1",
        ),
        (
            [{**QUESTION, "metadata": {"inReferenceTo": [{"mrt": "dmsg", "mText": "x"}]}}, REPLY],
            "the text that message 0 refers to cannot be read",
        ),
    ],
)
def test_what_is_not_a_text_or_a_call_quarantines_the_chat(tmp_path: Path, messages: list[Any], problem: str):
    """With the number of the message."""
    assert (read(tmp_path, *messages).problem or "").startswith(problem)


def test_an_empty_line_separates_fragments_with_a_text(tmp_path: Path):
    """As on the page."""
    record = read(tmp_path, message("user", big_agi_text(ASKED), big_agi_text("Please.")), REPLY)
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [f"{ASKED}\n\nPlease."]
