"""Chats in OpenAI's format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
ASKED = {"role": "user", "content": "Where is order 7?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"state": "lost"}'}
REPLY = {"role": "assistant", "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": "lost."}]}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": {}}}


def records(tmp_path: Path, *items: Any, name: str = "chats.jsonl") -> list[SourceRecord]:
    """Records of a file with these items, one a line."""
    path = tmp_path / name
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items))
    return list(read_records(ChatSource(kind="openai_messages", path=str(path))))


def test_a_fine_tuning_record_is_a_scenario(tmp_path: Path) -> None:
    """Developer text, parts of a text, a call with its result, the tools, id and category of the record."""
    messages = [{"role": "developer", "content": "Be kind."}, ASKED, CALLED, RESULT, REPLY]
    record = {"messages": messages, "tools": [TOOL], "id": "t1", "metadata": {"category": "delivery"}}
    (read,) = records(tmp_path, record)
    assert read.data is not None
    assert (read.data["id"], read.data["metadata"]["category"], read.data["context"]) == ("t1", "delivery", "Be kind.")
    assert read.data["expected"]["responses"] == ["It is\nlost."]
    assert read.data["world"]["recorded"][0]["result"] == {"state": "lost"}
    assert read.data["tools"] == [
        {"name": "look_up", "description": "Look up.", "parameters": {"type": "object", "properties": {}}}
    ]


def test_a_logged_request_with_its_response_is_a_scenario(tmp_path: Path) -> None:
    """The first choice is the last message; a record without an id is named by its line and digest."""
    response = {"choices": [{"message": REPLY}, {"message": ASKED}]}
    (read,) = records(tmp_path, {"request": {"model": "m", "messages": [ASKED]}, "response": response})
    assert read.data is not None
    assert re.fullmatch("chats-1-[0-9a-f]{6}", read.data["id"])
    assert read.data["expected"]["responses"] == ["It is\nlost."]


def test_a_json_array_and_json_lines_named_json_are_read(tmp_path: Path) -> None:
    """By the first line, whatever the name says."""
    good = {"messages": [ASKED, REPLY]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([good, good], indent=1))
    assert len(list(read_records(ChatSource(kind="openai_messages", path=str(path))))) == 2
    assert len(records(tmp_path, good, good, good, name="b.json")) == 3


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"messages": "x"}, "messages are not a list: str"),
        ({"chat": []}, "no messages: the record has chat"),
        ({"messages": ["x"]}, "message is not an object: message 0 is str"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "unknown role: bot in message 0; known are system"),
        ({"messages": [REPLY]}, "no user turn: "),
        ({"messages": [ASKED, CALLED]}, "unanswered tool call: look_up, id c1"),
        ({"messages": [ASKED, RESULT]}, "orphaned tool result: message 1, for id c1"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content is not text: part image_url"),
        ({"messages": [{"role": "user", "content": 7}]}, "content is not text: int in message 0"),
        ({"messages": [{**ASKED, "tool_calls": [CALL]}]}, "tool call of another role: user"),
        ({"messages": [ASKED, {**CALLED, "tool_calls": [{"id": "c1"}]}]}, "tool call without a function name"),
        ({"messages": [ASKED], "tools": {}}, "tools are not a list: dict"),
        ({"messages": [ASKED], "tools": [TOOL, TOOL]}, "two tools of one name: look_up"),
        ({"messages": [ASKED], "id": [1]}, "id is not a text: list"),
        ({"messages": [ASKED], "metadata": []}, "metadata is not an object: list"),
        ({"request": {"messages": [ASKED]}, "response": {}}, "no choice in the response"),
        ("[1]", "not an object: list"),
    ],
)
def test_a_broken_record_has_its_line_and_reason(tmp_path: Path, record: Any, problem: str) -> None:
    """The record after it is read."""
    broken, good = records(tmp_path, record, {"messages": [ASKED]})
    assert (broken.line, broken.data) == (1, None)
    assert (broken.problem or "").startswith(problem)
    assert good.problem is None


@pytest.mark.parametrize(
    ("arguments", "problem"), [("{", "arguments are not JSON"), ("[1]", "arguments are not an object: list of look_up")]
)
def test_arguments_that_are_not_an_object_are_a_problem(tmp_path: Path, arguments: str, problem: str) -> None:
    """The reason names the tool and the message."""
    call = {**CALL, "function": {"name": "look_up", "arguments": arguments}}
    (read,) = records(tmp_path, {"messages": [ASKED, {**CALLED, "tool_calls": [call]}, RESULT]})
    assert (read.problem or "").startswith(problem)
    assert "look_up in message 1" in (read.problem or "")


def test_a_call_without_arguments_is_read(tmp_path: Path) -> None:
    """OpenAI writes them as an empty text; an object is read as it is."""
    for arguments, expected in (("", {}), (None, {}), ({"order": 7}, {"order": 7})):
        call = {**CALL, "function": {"name": "look_up", "arguments": arguments}}
        (read,) = records(tmp_path, {"messages": [ASKED, {**CALLED, "tool_calls": [call]}, RESULT]})
        assert read.data is not None
        assert read.data["world"]["recorded"][0]["arguments"] == expected
