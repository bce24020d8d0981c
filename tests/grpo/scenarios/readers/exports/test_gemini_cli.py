"""Sessions of Gemini CLI: results in each form, and what is not whole."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import DONE
from tests.grpo.scenarios.program_samples import GEMINI_CLI


def read(tmp_path: Path, *messages: Any, **names: str) -> SourceRecord:
    """The record of a session."""
    path = tmp_path / "session.json"
    path.write_text(json.dumps({"sessionId": "0199", "messages": messages}))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path), names=names))
    return record


def session(**call: Any) -> list[dict[str, Any]]:
    """The session of the samples, with other fields of its call."""
    messages = copy.deepcopy(GEMINI_CLI)
    messages[2]["toolCalls"][0].update(call)
    return messages


def response(**fields: Any) -> list[dict[str, Any]]:
    """The result of a call with these fields."""
    return [{"functionResponse": {"id": "c1", "name": "look_up", "response": fields}}]


@pytest.mark.parametrize(
    ("result", "read_as"),
    [
        (response(error="no order 7"), {"error": "no order 7"}),
        (response(output={"order": 7}), {"order": 7}),
        ([*response(output="lost"), {"text": "and found"}], "lost\nand found"),
        ("lost", "lost"),
    ],
)
def test_a_result_is_read_in_each_form(tmp_path: Path, result: Any, read_as: Any):
    """Of a call that failed the model read the whole response."""
    record = read(tmp_path, *session(result=result))
    assert record.data is not None, record.problem
    (recorded,) = record.data["world"]["recorded"]
    assert recorded["result"] == read_as
    assert record.data["expected"] == {"responses": [DONE]}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (session(result=None, status="cancelled"), "unanswered tool call: look_up"),
        (session(result=[{"inlineData": {"data": ""}}]), "content is not text: part inlineData in message 2"),
        (
            [{"type": "user", "content": [{"fileData": {}}]}, *GEMINI_CLI],
            "content is not text: part fileData in message 0",
        ),
        ([{"type": "gemini", "content": "", "toolCalls": "x"}, *GEMINI_CLI], "toolCalls of message 0 is not a list"),
    ],
)
def test_a_session_that_is_not_whole_is_quarantined(tmp_path: Path, messages: list[Any], problem: str):
    """A call that its user cancelled has no result."""
    assert (read(tmp_path, *messages).problem or "").startswith(problem)


@pytest.mark.parametrize("key", ["toolCalls", "ToolUses", "tool-invocations", "functionResponse", "tool_outputs"])
def test_calls_under_a_key_of_an_unknown_program_are_not_left_out(tmp_path: Path, key: str):
    """Without them the reply would seem to come from nothing. If their form is known, `names` reads them."""
    calls = [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}]
    messages = [
        {"role": "user", "content": "Where is order 7?"},
        {"role": "assistant", "content": None, key: calls},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
        {"role": "assistant", "content": DONE},
    ]
    record = read(tmp_path, *messages)
    assert (record.problem or "").startswith(
        f"message.{key} cannot be read: it has calls or results of tools; message 1"
    )
    named = read(tmp_path, *messages, tool_calls=key)
    assert named.data is not None, named.problem
    assert [call["name"] for call in named.data["world"]["recorded"]] == ["look_up"]


def test_calls_next_to_the_messages_are_not_left_out(tmp_path: Path):
    """Nothing says to which message they belong."""
    path = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "Where is order 7?"}, {"role": "assistant", "content": DONE}]
    path.write_text(json.dumps({"messages": messages, "toolCalls": [{"name": "look_up"}]}))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    problem = "record.toolCalls cannot be read: it has calls or results of tools. Write them into the messages"
    assert (record.problem or "").startswith(problem)


def test_calls_in_an_object_of_a_message_are_not_left_out(tmp_path: Path):
    """Programs keep them in the metadata of a message."""
    reply = {"role": "assistant", "content": DONE, "extra": {"tool_calls": [{"id": "c1"}]}}
    record = read(tmp_path, {"role": "user", "content": "Where is order 7?"}, reply)
    assert (record.problem or "").startswith("message.extra.tool_calls cannot be read: it has calls or results")


def lines_of(tmp_path: Path, *lines: dict[str, Any]) -> SourceRecord:
    """The record of a file of lines."""
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, ({"sessionId": "0199", "projectHash": "a1"}, *lines))))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def said(name: str, kind: str, text: str) -> dict[str, Any]:
    return {"id": name, "type": kind, "content": text}


def test_turns_after_a_summary_are_left_out(tmp_path: Path):
    """The model read the summary instead of the question. If only results were shortened, the questions stay."""
    first = [said("1", "user", "Where is order 7?"), said("2", "gemini", DONE)]
    summary = {"$set": {"messages": [said("9", "user", "He asked for order 7."), said("8", "gemini", "Got it.")]}}
    record = lines_of(tmp_path, *first, summary, said("3", "user", "And 8?"), said("4", "gemini", "Here."))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["Where is order 7?"], [DONE])
    assert "record: turns after a summary, which the model read instead of the earlier turns" in record.ignored
    shortened = {"$set": {"messages": [said("1", "user", "…"), said("7", "gemini", "…")]}}
    record = lines_of(tmp_path, *first, shortened, said("3", "user", "And 8?"), said("4", "gemini", "Here."))
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == ["Where is order 7?", "And 8?"]
    assert record.data["expected"]["responses"] == [DONE, "Here."]


def test_a_way_back_to_no_message_is_quarantined(tmp_path: Path):
    """Nobody knows which turns are left."""
    record = lines_of(tmp_path, said("1", "user", "Hello."), said("2", "gemini", DONE), {"$rewindTo": "5"})
    assert (record.problem or "").startswith("$rewindTo names no message: 5. Delete the line")


def test_messages_that_are_only_in_a_change_are_read(tmp_path: Path):
    """A session that was resumed may have all of its messages in one line."""
    whole = {"$set": {"messages": [said("1", "user", "Where is order 7?"), said("2", "gemini", DONE)]}}
    record = lines_of(tmp_path, whole)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["Where is order 7?"], [DONE])
    record = lines_of(tmp_path, said("1", "user", "Where is order 7?"), {"$set": {"messages": "x"}}, whole,
                      said("3", "user", "Thanks."))  # fmt: skip
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == ["Where is order 7?", "Thanks."]
    assert record.data["expected"]["responses"] == [DONE]


def test_calls_and_results_that_are_in_the_content_too_are_read_once(tmp_path: Path):
    """Under other ids than in `toolCalls`."""
    messages = session()
    messages[2]["content"] = [{"functionCall": {"id": "x", "name": "look_up", "args": {"order": "7"}}}]
    messages.insert(3, {"id": "r", "type": "user", "content": response(output="lost")})
    record = read(tmp_path, *messages)
    assert record.data is not None, record.problem
    assert [call["result"] for call in record.data["world"]["recorded"]] == ["lost"]
    assert (record.data["user_responses"], record.data["expected"]) == (["Where is order 7?"], {"responses": [DONE]})
