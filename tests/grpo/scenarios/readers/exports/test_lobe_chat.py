"""Exports of LobeChat: topics are chats, and what is not a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import LOBE_CHAT, lobe_chat


def read(tmp_path: Path, *messages: Any) -> list[SourceRecord]:
    """The records of an export."""
    path = tmp_path / "LobeChat.json"
    path.write_text(json.dumps(lobe_chat(*messages)))
    return list(read_records(ChatSource(kind="openai_messages", path=str(path))))


def test_each_topic_is_a_chat_in_the_order_of_time(tmp_path: Path):
    """Messages of all topics are in one list. Those without a topic are a chat too."""
    messages = [
        {"topicId": "t", "role": "assistant", "content": DONE, "createdAt": 9},
        {"topicId": "u", "role": "user", "content": "Open?", "createdAt": 2},
        {"topicId": "t", "role": "user", "content": ASKED, "createdAt": 1},
        {"role": "user", "content": "Hello.", "createdAt": 4},
    ]
    chats = [record.data for record in read(tmp_path, *messages) if record.data is not None]
    assert [(chat["id"], chat["user_responses"], chat["expected"]["responses"]) for chat in chats] == [
        ("s/t", [ASKED], [DONE]), ("s/u", ["Open?"], []), ("s", ["Hello."], []),
    ]  # fmt: skip
    assert [chat["context"] for chat in chats] == ["Be kind."] * 3


def test_the_call_of_an_older_version_is_in_the_message_of_its_result(tmp_path: Path):
    """Of the role function."""
    result = {"role": "function", "content": "lost", "plugin": LOBE_CHAT[2]["plugin"]}
    (record,) = read(tmp_path, LOBE_CHAT[0], result, LOBE_CHAT[3])
    assert record.data is not None, record.problem
    (recorded,) = record.data["world"]["recorded"]
    assert (recorded["name"], recorded["arguments"], recorded["result"]) == ("look_up", {"order": "7"}, "lost")


def test_a_reply_with_an_error_is_no_reference(tmp_path: Path):
    """The turn stays."""
    (record,) = read(tmp_path, LOBE_CHAT[0], {**LOBE_CHAT[3], "error": {"type": "offline"}})
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": []}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "content": "x", "imageList": [{"id": "i"}]}, "imageList of message 1 cannot be read"),
        ({"role": "assistant", "content": "x", "tools": {"id": "c"}}, "tools of message 1 are not a list: dict"),
        ({"role": "assistant", "content": "x", "tools": [{"id": "c"}]}, "a call of message 1 has no apiName"),
        ({"role": "function", "content": "x"}, "a call of message 1 has no apiName"),
    ],
)
def test_what_cannot_be_read_quarantines_the_chat(tmp_path: Path, message: dict[str, Any], problem: str):
    """With the number of the message."""
    (record,) = read(tmp_path, LOBE_CHAT[0], message)
    assert (record.problem or "").startswith(problem)


def test_a_thread_is_not_read_without_the_topic_that_it_continues(tmp_path: Path):
    """Its first messages are in another chat."""
    topic, thread = read(tmp_path, *LOBE_CHAT, {**LOBE_CHAT[0], "threadId": "t"})
    assert topic.data is not None, topic.problem
    assert (thread.problem or "").startswith("a thread continues messages of its topic")
