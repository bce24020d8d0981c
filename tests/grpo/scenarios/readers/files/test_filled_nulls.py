"""Files that `datasets` has written, in which every object of a column has the fields of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from grpo.config.dpo import WrittenPairs
from grpo.config.scenarios import ScenarioSettings
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.learner.offline.preferences import read_pairs
from grpo.messages import Message, ToolCall
from grpo.scenario import Scenario
from grpo.scenarios.ingest import ingest
from grpo.scenarios.readers.files.filled_nulls import schema_without_filled_nulls, without_filled_nulls
from grpo.scenarios.table import read_scenarios

CALLS = {"look_up": {"order": "7"}, "weather": {"city": "Rome"}}


def tool(name: str) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in CALLS[name]}
    return {"name": name, "description": "d", "parameters": {"type": "object", "properties": properties}}


def messages(name: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": CALLS[name]}}
    return [
        {"role": "user", "content": f"Use {name}."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "content": "Done."},
    ]


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A file with the line `… "arguments": {"order": "7", "city": null} …`."""
    path = folder / "rows.jsonl"
    Dataset.from_list(rows).to_json(path)
    assert '"city":null' in path.read_text()
    return path


def ingested(folder: Path, **source: Any) -> list[Scenario]:
    sources = ScenarioSettings.model_validate({"sources": [source]}).sources
    ingest(sources, folder / "s.parquet", folder / "q.parquet", max_quarantined_fraction=0.0)
    return list(read_scenarios(folder / "s.parquet"))


def test_a_chat_has_the_parameters_and_arguments_that_were_written(tmp_path: Path):
    """With `city: null` among the arguments, no call of the model would have the recorded result."""
    rows = [{"messages": messages(name), "tools": [{"type": "function", "function": tool(name)}]} for name in CALLS]
    scenarios = ingested(tmp_path, kind="openai_messages", path=str(written(tmp_path, rows)))
    assert [scenario.tools for scenario in scenarios] == [(tool("look_up"),), (tool("weather"),)]
    assert [scenario.world["recorded"][0]["arguments"] for scenario in scenarios] == list(CALLS.values())


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_scenario_has_the_tools_and_expected_calls_that_were_written(tmp_path: Path, kind: str):
    """One of the two has expected facts; nulls of `world` stay, because they may be data."""
    rows: list[dict[str, Any]] = [
        {
            "id": name,
            "user_responses": ["Hello."],
            "tools": [tool(name)],
            "world": {name: 1},
            "expected": {"calls": [{"name": name, "arguments": arguments}]},
        }
        for name, arguments in CALLS.items()
    ]
    rows[0]["expected"]["facts"] = ["7"]
    path = written(tmp_path, rows)
    if kind == "parquet":
        path = path.with_suffix(".parquet")
        Dataset.from_list(rows).to_parquet(path)
    scenarios = ingested(tmp_path, kind=kind, path=str(path))
    assert [scenario.tools for scenario in scenarios] == [(tool("look_up"),), (tool("weather"),)]
    assert [scenario.expected.facts for scenario in scenarios] == [("7",), ()]
    assert [dict(call["arguments"]) for scenario in scenarios for call in scenario.expected.calls] == [*CALLS.values()]
    assert [dict(scenario.world) for scenario in scenarios] == [
        {"look_up": 1, "weather": None},
        {"look_up": None, "weather": 1},
    ]


def test_demonstrations_and_pairs_have_the_arguments_that_were_written(tmp_path: Path):
    """Otherwise the model learns to write `"city": null`."""
    rows = [{"messages": messages(name), "tools": [{"type": "function", "function": tool(name)}]} for name in CALLS]
    read = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(written(tmp_path, rows))))
    assert [conversation[1].tool_calls[0].arguments for conversation in read] == list(CALLS.values())
    rejected = [{"role": "assistant", "content": "No."}]
    pairs = [
        {"prompt": row["messages"][:1], "chosen": row["messages"][1:2], "rejected": rejected, "tools": row["tools"]}
        for row in rows
    ]
    prepared = read_pairs(WrittenPairs(kind="jsonl", path=str(written(tmp_path, pairs))))
    assert [pair.chosen.tool_calls[0].arguments for pair in prepared] == list(CALLS.values())
    assert [pair.tools[0].parameters for pair in prepared if pair.tools] == [tool(name)["parameters"] for name in CALLS]


@pytest.mark.parametrize(
    ("schema", "cleaned"),
    [
        ({"items": {"default": None, "enum": [None, 1]}}, {"items": {"default": None, "enum": [None, 1]}}),
        ({"properties": {"a": {"const": None}, "b": None}}, {"properties": {"a": {}}}),
        ({"anyOf": [{"required": None}]}, {"anyOf": [{}]}),
    ],
)
def test_a_null_that_json_schema_allows_stays_unless_another_one_was_filled_in(schema: Any, cleaned: Any):
    """`const: null` would allow nothing but null."""
    assert schema_without_filled_nulls(schema) == cleaned


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"properties": {"a": {"type": ["string", "null"]}}}, {"a": None, "b": [{"c": None}]}),
        ({"properties": {"b": {"items": {"properties": {"c": {"type": "string"}}}}}}, {"b": [{}]}),
        ({"additionalProperties": True}, {"a": None, "b": [{"c": None}]}),
        ({"properties": {"a": {"$ref": "#/$defs/text"}}, "$defs": {"text": {"type": "string"}}}, {"b": [{"c": None}]}),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, {"a": None, "b": [{"c": None}]}),
        (None, {"a": None, "b": [{"c": None}]}),
    ],
)
def test_a_null_that_the_schema_accepts_stays(schema: Any, left: dict[str, Any]):
    """Also where the tool is not known, or its schema cannot be used."""
    call = ToolCall(name="t", arguments={"a": None, "b": [{"c": None}]})
    (message,) = without_filled_nulls(
        [Message(role="assistant", content="", tool_calls=(call,))], lambda: {} if schema is None else {"t": schema}
    )
    assert message.tool_calls[0].arguments == left
