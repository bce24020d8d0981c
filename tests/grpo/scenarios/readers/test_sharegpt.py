"""Chats in ShareGPT's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records


def records(tmp_path: Path, *items: Any) -> list[SourceRecord]:
    """Records of a JSON list of these items."""
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(items))
    return list(read_records(ChatSource(kind="sharegpt", path=str(path))))


def turn(speaker: str, value: Any) -> dict[str, Any]:
    """One message."""
    return {"from": speaker, "value": value}


def test_a_dump_with_calls_is_a_scenario(tmp_path: Path) -> None:
    """Two calls at once, whose results follow in their order; tools as JSON in a text."""
    calls = [{"name": "look_up", "arguments": {"order": "7"}}, {"name": "look_up", "arguments": '{"order": "8"}'}]
    tools = json.dumps([{"name": "look_up", "description": "Look up.", "parameters": {"type": "object"}}])
    chat = [
        turn("human", "Both?"),
        turn("function_call", json.dumps(calls)),
        turn("observation", "lost"),
        turn("tool", "here"),
        turn("gpt", "One is lost."),
    ]
    (read,) = records(tmp_path, {"conversations": chat, "system": "Be kind.", "tools": tools, "id": 3})
    assert read.data is not None
    assert (read.data["id"], read.data["context"], read.data["user_responses"]) == ("3", "Be kind.", ["Both?"])
    assert [tool["description"] for tool in read.data["tools"]] == ["Look up."]
    recorded = [(call["arguments"], call["result"]) for call in read.data["world"]["recorded"]]
    assert recorded == [({"order": "7"}, "lost"), ({"order": "8"}, "here")]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"items": []}, "no conversations: the record has items"),
        ({"conversations": {}}, "conversations are not a list: dict"),
        ({"conversations": [turn("alien", "x")]}, "unknown role: alien in message 0"),
        ({"conversations": [turn("human", 7)]}, "value is not a text: int in message 0"),
        ({"conversations": [turn("human", "x"), turn("function_call", "{")]}, "function call is not JSON: message 1"),
        ({"conversations": [turn("human", "x"), turn("function_call", "7")]}, "tool call without a function name"),
        ({"conversations": [turn("human", "x"), turn("observation", "y")]}, "orphaned tool result: message 1"),
        ({"conversations": [turn("gpt", "x")]}, "no user turn"),
        ({"conversations": [turn("human", "x")], "system": 7}, "system is not a text: int"),
        ({"conversations": [turn("human", "x")], "tools": "{"}, "tools are not JSON"),
    ],
)
def test_a_broken_record_has_its_number_and_reason(tmp_path: Path, item: Any, problem: str) -> None:
    """The record after it is read."""
    broken, good = records(tmp_path, item, {"conversations": [turn("user", "Hi."), turn("assistant", "Hi.")]})
    assert (broken.line, (broken.problem or "")[: len(problem)]) == (1, problem)
    assert good.problem is None
