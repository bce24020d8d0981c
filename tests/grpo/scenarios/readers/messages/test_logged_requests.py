"""Records with a list of messages, next to which other fields look like a logged request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.readers.chat_records import convert_chats
from grpo.scenarios.records import SourceRecord

CHAT = [{"role": "user", "content": "Where is order 7?"}, {"role": "assistant", "content": "It is lost."}]


@pytest.mark.parametrize(
    "field",
    [
        {"request": '{"id": 1}'},
        {"request_body": '{"id": 1}'},
        {"full_request": {"id": 1}},
        {"input": {"inputBodyJson": {"id": 1}}},
    ],
)
def test_a_list_of_messages_is_read_before_a_field_that_may_describe_it(field: dict[str, Any]) -> None:
    settings = ChatSource(kind="openai_messages", path="x.jsonl")
    data = {"messages": CHAT, **field}
    (record,) = convert_chats([SourceRecord(source="x.jsonl", line=1, data=data)], Path("x.jsonl"), settings)
    assert record.data is not None, record.problem
    assert record.data["expected"]["responses"] == ["It is lost."]
