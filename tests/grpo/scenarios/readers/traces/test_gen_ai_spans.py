"""Spans with OpenTelemetry's attributes of generative AI: in the collector's files, and as OpenLLMetry writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.traces.gen_ai_spans import with_attributes
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE

CALL = {"id": "c1", "name": "look_up", "arguments": '{"order": "7"}'}
BEGAN = 1_763_629_200_000_000_000
"""Nanoseconds."""


def text(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": content}], **fields}


QUESTION = text("user", ASKED)
CALLED = {"role": "assistant", "parts": [{"type": "tool_call", **CALL}]}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "lost"}]}
REPLY = text("assistant", DONE, finish_reason="stop")


def span(number: int, **attributes: Any) -> dict[str, Any]:
    """A span of a model, with attributes as an object."""
    return {"traceId": "t", "spanId": str(number), "parentSpanId": "root", "name": "chat",
            "startTimeUnixNano": str(BEGAN + number), "attributes": attributes}  # fmt: skip


def own(number: int, given: list[Any], reply: Any) -> dict[str, Any]:
    """A span with OpenTelemetry's own attributes, which are JSON in texts."""
    values = {"input.messages": given, "output.messages": [reply], "tool.definitions": [{"name": "look_up"}],
              "system_instructions": [{"type": "text", "content": "Be kind."}]}  # fmt: skip
    return span(number, **{f"gen_ai.{name}": json.dumps(value) for name, value in values.items()})


def open_llmetry(number: int, given: list[Any], reply: Any) -> dict[str, Any]:
    """A span of OpenLLMetry, with an attribute for each field."""
    attributes: dict[str, Any] = {"gen_ai.system": "openai", "llm.request.type": "chat",
                                  "llm.request.functions.0.name": "look_up",
                                  "llm.request.functions.0.parameters": '{"type": "object", "properties": {}}',
                                  "gen_ai.prompt.0.role": "system", "gen_ai.prompt.0.content": "Be kind."}  # fmt: skip
    sides = [
        *((f"gen_ai.prompt.{k}", message) for k, message in enumerate(given, start=1)),
        ("gen_ai.completion.0", reply),
    ]
    for place, message in sides:
        (part,) = message["parts"]
        attributes[f"{place}.role"] = message["role"]
        if part["type"] == "tool_call":
            attributes |= {f"{place}.tool_calls.0.{name}": value for name, value in CALL.items()}
        else:
            attributes[f"{place}.content"] = part.get("content", part.get("response"))
        if part["type"] == "tool_call_response":
            attributes[f"{place}.tool_call_id"] = part["id"]
    return span(number, **attributes)


def collected(item: dict[str, Any]) -> dict[str, Any]:
    """A line of the collector's file, whose attributes are a list."""
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in item["attributes"].items()]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [{**item, "attributes": listed}]}]}]}


@pytest.mark.parametrize("is_collected", [False, True])
@pytest.mark.parametrize("write", [own, open_llmetry])
def test_the_calls_of_a_trace_are_one_chat(tmp_path: Path, write: Any, is_collected: bool):
    """The second one repeats the first one, and the file has them in the wrong order."""
    rows = [write(1, [QUESTION, CALLED, RESULT], REPLY), write(0, [QUESTION], CALLED)]
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(json.dumps(collected(row) if is_collected else row) for row in rows))
    source = guess_source(path)
    assert source.kind == "openinference"
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert (record.data["id"], record.data["context"]) == ("t", "Be kind.")
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == ([ASKED], [DONE])
    assert record.data["world"]["recorded"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}
    ]
    assert [tool["name"] for tool in record.data["tools"]] == ["look_up"]


def test_a_document_of_the_collector_is_read_with_its_conversations(tmp_path: Path):
    """A reply that was cut off is not a reference. A span of a tool has no messages."""
    spans = [
        {**own(number, [text("user", f"Order {number}?")], {**REPLY, "finish_reason": reason}), "traceId": f"t{number}"}
        for number, reason in enumerate(("stop", "length"))
    ]
    for item in spans:
        item["attributes"]["gen_ai.conversation.id"] = f"c{item['spanId']}"
    spans.append(span(9, **{"gen_ai.operation.name": "execute_tool", "gen_ai.conversation.id": "c0"}))
    items = [collected(item)["resourceSpans"][0] for item in spans]
    path = tmp_path / "spans.json"
    path.write_text(json.dumps({"resourceSpans": items}, indent=1))
    chats = [record.data for record in read_records(guess_source(path)) if record.data is not None]
    assert [(chat["id"], chat["expected"]["responses"]) for chat in chats] == [("c0", [DONE]), ("c1", [])]


def test_values_of_each_type_are_read():
    """Integers are texts in JSON. An unknown value is none."""
    given = [
        {"key": "a", "value": {"arrayValue": {"values": [{"stringValue": "x"}, {"boolValue": True}]}}},
        {"key": "b", "value": {"kvlistValue": {"values": [{"key": "c", "value": {"intValue": "7"}}]}}},
        {"key": "d", "value": {"bytesValue": "x"}},
    ]
    assert with_attributes({"attributes": given}) == {"attributes": {"a": ["x", True], "b": {"c": "7"}, "d": None}}
