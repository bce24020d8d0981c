"""Messages of AI SDK 4: nothing of the parts is lost next to the content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.readers.messages.ai_sdk import with_page_parts
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE

INVOKED = {"state": "result", "toolCallId": "c1", "toolName": "look_up", "args": {"order": "7"}, "result": "lost"}
PART = {"type": "tool-invocation", "toolInvocation": INVOKED}
TEXT = {"type": "text", "text": DONE}
THOUGHT = {"type": "reasoning", "reasoning": "7?", "details": []}


def read(tmp_path: Path, reply: dict[str, Any]) -> SourceRecord:
    """The record of a question with this reply."""
    question = {"role": "user", "content": ASKED, "parts": [{"type": "text", "text": ASKED}]}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [question, {"role": "assistant", **reply}]}))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


@pytest.mark.parametrize(
    "reply",
    [
        {"content": DONE, "parts": [{"type": "step-start"}, THOUGHT, PART, TEXT]},
        {"content": "", "parts": [PART, TEXT]},
        {"content": DONE, "parts": [PART, TEXT], "toolInvocations": [INVOKED]},
        {"content": DONE, "toolInvocations": [INVOKED]},
        {"content": DONE, "parts": [PART]},
    ],
)
def test_calls_texts_and_results_are_read_once(tmp_path: Path, reply: dict[str, Any]):
    """From the parts, or from `toolInvocations` in older versions."""
    record = read(tmp_path, reply)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]) == ([ASKED], {"responses": [DONE]})
    assert record.data["world"]["recorded"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}
    ]


def test_a_picture_next_to_the_content_is_not_left_out(tmp_path: Path):
    """The text says nothing of it."""
    record = read(tmp_path, {"content": DONE, "parts": [{"type": "file", "mimeType": "image/png", "data": ""}, TEXT]})
    assert (record.problem or "").startswith("content is not text: part file in message 1")


@pytest.mark.parametrize(
    "message",
    [
        {"content": DONE},
        {"content": DONE, "parts": [{"text": DONE}]},
        {"content": [TEXT], "parts": [TEXT]},
        {"content": DONE, "toolInvocations": [{"id": "c1"}]},
    ],
)
def test_a_message_of_another_format_stays_as_it_is(message: dict[str, Any]):
    """Without parts, with parts that have no type, and with content that has parts itself."""
    assert with_page_parts(message) == message
