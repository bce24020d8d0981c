"""Chats in the formats of Anthropic, Bedrock, Gemini, AI SDK and OpenTelemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource, TraceSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import (
    AI_SDK_MODEL,
    AI_SDK_PAGE,
    ASKED,
    BEDROCK,
    DONE,
    FIELDS,
    GEMINI,
    OTEL,
    SCHEMA,
    USE,
    anthropic,
)


def read(tmp_path: Path, item: dict[str, Any]) -> SourceRecord:
    """The record of one line."""
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(item))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def test_calls_may_be_json_texts_in_a_list(tmp_path: Path):
    """As verifiers saves them."""
    call = json.dumps({"id": "c1", "name": "look_up", "arguments": '{"order": "7"}'})
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "lost"},
        {"role": "assistant", "content": DONE},
    ]
    data = read(tmp_path, {"messages": messages}).data
    assert data is not None
    assert data["world"]["recorded"] == [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}]


def agent(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A question, and the agent's message with these parts and fields."""
    return {"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": [*parts], **fields}]}


ASKS = {"type": "tool-approval-request", "approvalId": "a1", "toolCallId": "t1"}
FAILS = {"type": "tool-error", "toolCallId": "t1", "toolName": "look_up", "input": {"order": "7"}, "error": "down"}


@pytest.mark.parametrize("item", [anthropic(), BEDROCK, GEMINI, AI_SDK_MODEL, AI_SDK_PAGE, OTEL])
def test_the_same_chat_in_six_formats_is_the_same_scenario(tmp_path: Path, item: dict[str, Any]) -> None:
    """System text, a tool with its schema, reasoning, a text beside a call, the result, and the reply."""
    record = read(tmp_path, item)
    assert record.data is not None, record.problem
    assert record.data["context"] == "You run the desk."
    assert record.data["user_responses"] == [ASKED]
    assert record.data["tools"] == [{**FIELDS, "parameters": SCHEMA}]
    call = {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": {"state": "lost"}}
    assert record.data["world"] == {"recorded": [call]}
    assert record.data["expected"] == {"responses": [f"I look.\n{DONE}"]}
    assert "message.reasoning: the reasoning before a reply does not belong to a reference" in record.ignored


def test_results_of_calls_without_ids_go_to_their_functions(tmp_path: Path) -> None:
    """Two calls of Gemini, answered in the other order, and the user's words after the results."""
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("near", "far")]
    results = [{"functionResponse": {"name": name, "response": {"in": name}}} for name in ("far", "near")]
    contents = [
        {"role": "user", "parts": [{"text": ASKED}]},
        {"role": "model", "parts": calls},
        {"role": "user", "parts": [*results, {"text": "Well?"}]},
        {"role": "model", "parts": [{"text": DONE}]},
    ]
    record = read(tmp_path, {"contents": contents})
    assert record.data is not None, record.problem
    recorded = record.data["world"]["recorded"]
    assert [(call["name"], call["result"]) for call in recorded] == [("near", {"in": "near"}), ("far", {"in": "far"})]
    assert record.data["user_responses"] == [ASKED, "Well?"]


@pytest.mark.parametrize(
    "response",
    [
        {"role": "assistant", "content": [{"type": "text", "text": DONE}], "stop_reason": "end_turn"},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": DONE}]}, "finishReason": "STOP"}]},
        {"output": {"message": {"role": "assistant", "content": [{"text": DONE}]}}, "stopReason": "end_turn"},
        {"choices": [{"message": {"role": "assistant", "content": DONE}}]},
    ],
)
def test_a_logged_exchange_is_read_wherever_a_proxy_writes_it(tmp_path: Path, response: dict[str, Any]) -> None:
    """As `request` and `response`, with a `body` in each, as Helicone's columns, as Bedrock's batches, and beside the
    messages."""
    request = {"system": "Be brief.", "messages": [{"role": "user", "content": ASKED}]}
    for item in (
        {"request": request, "response": response},
        {"request": {"body": request}, "response": {"body": response}},
        {"request_body": request, "response_body": response},
        {"recordId": "1", "modelInput": request, "modelOutput": response},
        {**request, "response": response},
    ):
        record = read(tmp_path, item)
        assert record.data is not None, record.problem
        assert (record.data["context"], record.data["expected"]) == ("Be brief.", {"responses": [DONE]})


DIFFERS = ("record.response: it differs from the reply that the messages end with",)
NO_REPLY = ("record.response: it is no reply in a known format",)
COMPLETION = {"choices": [{"message": {"role": "assistant", "content": DONE}}]}
CLAUDE = {"role": "assistant", "content": [{"type": "text", "text": DONE}]}


@pytest.mark.parametrize(
    ("ends_with_reply", "response", "responses", "ignored"),
    [
        (False, DONE, [DONE], ()),
        (False, COMPLETION, [DONE], ()),
        (False, {"error": "x"}, [], NO_REPLY),
        (False, 200, [], NO_REPLY),
        (True, DONE, [DONE], ()),
        (True, f"{DONE}\n", [DONE], ()),
        (True, COMPLETION, [DONE], ()),
        (True, CLAUDE, [DONE], ()),
        (True, "200 OK", [DONE], DIFFERS),
        (True, {"choices": [{"message": {"role": "assistant", "content": "No."}}]}, [DONE], DIFFERS),
        (True, {"choices": []}, [DONE], DIFFERS),
        (True, {"score": 1}, [DONE], NO_REPLY),
    ],
)
@pytest.mark.parametrize("agent", ["assistant", "model"])
def test_a_response_beside_messages_is_the_reply_if_they_have_none(
    tmp_path: Path, ends_with_reply: bool, response: Any, responses: list[str], ignored: tuple[str, ...], agent: str
) -> None:
    """The same reply is not read twice. Another one, and what is no reply, is left out and counted."""
    reply = [{"role": agent, "content": DONE}] if ends_with_reply else []
    record = read(tmp_path, {"messages": [{"role": "user", "content": ASKED}, *reply], "response": response})
    assert record.data is not None, record.problem
    assert (record.data["expected"], record.ignored) == ({"responses": responses}, ignored)


def test_a_completion_without_a_message_is_quarantined_if_it_has_to_be_the_reply(tmp_path: Path) -> None:
    """The reply would be lost."""
    item = {"messages": [{"role": "user", "content": ASKED}], "response": {"choices": []}}
    assert (read(tmp_path, item).problem or "").startswith("no choice in the response")


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (anthropic({"type": "image", "source": {}}), "content is not text: part image"),
        (
            anthropic({"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": {}}]}),
            "content is not text: part image in the result of a tool",
        ),
        ({"contents": [{"role": "user", "parts": [{"inlineData": {"data": ""}}]}]}, "content is not text: part inline"),
        (
            {**anthropic(), "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tool 0 is of type web_search_20250305, which the API runs itself",
        ),
        (agent(ASKS), "content is not text: part tool-approval-request in message 1"),
        (agent({"type": "text", "text": DONE}, FAILS), "content is not text: part tool-error in message 1"),
        (agent(USE, tool_calls=5), "tool_calls are not a list: int in message 1"),
        (agent(USE, tool_calls={"id": "t1"}), "tool_calls are not a list: dict in message 1"),
        ({"messages": [{"author": "x", "body": "y"}]}, "no role: message 0 has author, body. Name the key of the"),
    ],
)
def test_what_is_not_text_is_quarantined(tmp_path: Path, item: dict[str, Any], problem: str) -> None:
    """With the name of the part."""
    assert (read(tmp_path, item).problem or "").startswith(problem)


@pytest.mark.parametrize("call_id", [["t1"], {"a": 1}])
def test_an_id_of_any_type_is_read_as_in_other_messages(tmp_path: Path, call_id: Any) -> None:
    """As its JSON: a call of this id is read once, as a part and in `tool_calls`."""
    call = {"id": call_id, "function": {"name": "look_up", "arguments": {"order": "7"}}}
    expected = [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0}]
    for item in (agent({**USE, "id": call_id}, tool_calls=[call]), agent(tool_calls=[call])):
        record = read(tmp_path, item)
        assert record.data is not None, record.problem
        assert record.data["expected"]["calls"] == expected


def test_calls_that_langchain_repeats_are_read_once(tmp_path: Path) -> None:
    """Its messages have each call in `tool_calls`, as a part with Anthropic's models, and as the API sent it."""
    call = {"name": "look_up", "args": {"order": "7"}, "id": "t1"}
    api = {"tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]}
    agent = {"content": [{"type": "text", "text": "I look."}, USE], "tool_calls": [call], "additional_kwargs": api}
    messages = [
        {"type": "human", "content": ASKED},
        {"type": "ai", **agent},
        {"type": "tool", "content": "lost", "tool_call_id": "t1"},
    ]
    outputs = {"generations": [[{"message": {"type": "ai", "content": [{"type": "text", "text": DONE}]}}]]}
    path = tmp_path / "runs.jsonl"
    run = {"id": "r", "run_type": "llm", "inputs": {"messages": [messages]}, "outputs": outputs}
    path.write_text(json.dumps(run))
    (record,) = read_records(TraceSource(kind="langsmith", path=str(path)))
    assert record.data is not None, record.problem
    assert [call["result"] for call in record.data["world"]["recorded"]] == ["lost"]
    assert record.data["expected"] == {"responses": [f"I look.\n{DONE}"]}
