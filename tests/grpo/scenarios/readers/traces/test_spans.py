"""Spans of Braintrust, Weave and OpenInference, joined to chats."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.scenarios.guess import guess_source
from grpo.scenarios.sources import read_records

FIRST = [{"role": "user", "content": "My lamp is broken."}]
SINCE = {"role": "assistant", "content": "Since when?"}
SECOND = [*FIRST, SINCE, {"role": "user", "content": "Since May."}]
NEW = {"role": "assistant", "content": "You get a new one."}


def _braintrust(number: int, messages: list[Any], reply: Any) -> dict[str, Any]:
    return {
        "id": f"e{number}", "span_id": f"s{number}", "root_span_id": "lamp", "span_parents": ["lamp"],
        "created": f"2026-11-20T09:0{number}:00Z", "input": messages, "output": [{"index": 0, "message": reply}],
        "span_attributes": {"type": "llm"}, "metadata": {"model": "m"},
    }  # fmt: skip


def _weave(number: int, messages: list[Any], reply: Any) -> dict[str, Any]:
    return {
        "id": f"c{number}", "op_name": "weave:///e/p/op/openai.chat.completions.create:1", "trace_id": "lamp",
        "parent_id": "root", "started_at": f"2026-11-20T09:0{number}:00Z",
        "inputs": {"self": "<client>", "messages": messages}, "output": {"choices": [{"message": reply}]},
    }  # fmt: skip


def _openinference(number: int, messages: list[Any], reply: Any) -> dict[str, Any]:
    sides = {"input": messages, "output": [reply]}
    return {
        "name": "ChatCompletion", "context.trace_id": "lamp", "context.span_id": f"s{number}", "parent_id": "root",
        "start_time": f"2026-11-20T09:0{number}:00Z", "span_kind": "LLM",
        **{
            f"attributes.llm.{side}_messages.{k}.message.{key}": value
            for side, items in sides.items() for k, message in enumerate(items) for key, value in message.items()
        },
    }  # fmt: skip


def _mlflow(number: int, messages: list[Any], reply: Any) -> dict[str, Any]:
    outputs = {"choices": [{"message": reply}]}
    values = {"Type": "CHAT_MODEL" if messages else "TOOL", "Inputs": {"messages": messages}, "Outputs": outputs}
    span = {
        "span_id": f"s{number}", "parent_span_id": "root", "start_time_unix_nano": (1_763_629_200 + number) * 10**9,
        "attributes": {f"mlflow.span{name}": json.dumps(value) for name, value in values.items()},
    }  # fmt: skip
    info = {"trace_id": f"t{number}", "trace_metadata": {"mlflow.trace.session": "lamp"}}
    return {"info": info, "data": {"spans": [span]}}


@pytest.mark.parametrize("span", [_braintrust, _weave, _mlflow, _openinference])
def test_the_calls_of_a_trace_are_one_chat(tmp_path: Path, span: Any) -> None:
    """The second call repeats the first one; the file has them in the wrong order; a tool's span has no messages."""
    tool = {**span(0, [], SINCE), "span_attributes": {"type": "tool"}, "span_kind": "TOOL", "inputs": {"order": "7"}}
    path = tmp_path / "export.jsonl"
    rows = [span(2, SECOND, NEW), tool, span(1, FIRST, SINCE)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = guess_source(path)
    assert source.kind == span.__name__[1:]
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert record.data["id"] == "lamp"
    assert record.data["user_responses"] == ["My lamp is broken.", "Since May."]
    assert record.data["expected"]["responses"] == ["Since when?", "You get a new one."]


def test_without_a_call_of_a_model_the_root_is_read(tmp_path: Path) -> None:
    """Its input and output, and what was left out of them."""
    root = {
        "id": "c", "op_name": "predict", "trace_id": "t", "parent_id": None, "started_at": "2026-11-20T09:00:00Z",
        "inputs": {"question": "Where is order 7?", "k": 3}, "output": "It is lost.",
    }  # fmt: skip
    path = tmp_path / "export.jsonl"
    path.write_text(json.dumps(root) + "\n")
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (
        ["Where is order 7?"], ["It is lost."],
    )  # fmt: skip
    assert record.ignored == ("input.k: unknown",)


def test_calls_and_tools_of_openinference_are_read(tmp_path: Path) -> None:
    """Objects within objects, each under its own name."""
    call = {"tool_call": {"id": "c", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}}
    schema = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    messages = [
        {"message": {"role": "user", "contents": [{"message_content": {"type": "text", "text": "Order 7?"}}]}},
        {"message": {"role": "assistant", "tool_calls": [call]}},
        {"message": {"role": "tool", "tool_call_id": "c", "content": "lost"}},
    ]
    attributes = {
        "openinference": {"span": {"kind": "LLM"}},
        "llm": {
            "input_messages": messages, "output_messages": [{"message": SINCE}],
            "tools": [{"tool": {"json_schema": json.dumps(schema)}}],
        },
    }  # fmt: skip
    path = tmp_path / "export.jsonl"
    path.write_text(json.dumps({"context": {"trace_id": "t"}, "attributes": attributes}) + "\n")
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert record.data["world"]["recorded"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}
    ]
    assert [tool["name"] for tool in record.data["tools"]] == ["look_up"]


def _langsmith(number: int, messages: list[Any], reply: Any) -> dict[str, Any]:
    return {
        "id": f"r{number}", "trace_id": f"t{number}", "run_type": "llm", "error": None,
        "start_time": f"2026-11-20T09:0{number}:00", "inputs": {"messages": messages},
        "outputs": {"choices": [{"message": reply}]}, "extra": {"metadata": {"thread_id": "lamp"}},
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("span", [_langsmith, _braintrust, _weave, _openinference])
def test_a_table_of_traces_is_guessed_and_read_as_json_is(tmp_path: Path, span: Any, suffix: str) -> None:
    """With objects as JSON in CSV, and as structs in Parquet. Blank cells are absent fields."""
    path = tmp_path / f"a.{suffix}"
    rows = [span(1, FIRST, SINCE), span(2, SECOND, NEW)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if suffix == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            for row in rows:
                writer.writerow({key: cell if isinstance(cell, str) else json.dumps(cell) for key, cell in row.items()})
    else:
        pq.write_table(pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), path)
    source = guess_source(path)
    assert source.kind == span.__name__.removeprefix("_")
    (chat,) = read_records(source)
    assert chat.data is not None, chat.problem
    assert chat.data["user_responses"] == ["My lamp is broken.", "Since May."]
    assert chat.data["expected"]["responses"] == ["Since when?", "You get a new one."]
