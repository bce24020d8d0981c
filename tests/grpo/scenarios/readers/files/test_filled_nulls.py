"""Files that `datasets` has written, in which every object of a column has the fields of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from grpo.config.dpo import WrittenPairs
from grpo.config.scenarios import ScenarioSettings
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.learner.offline.preferences import read_pairs
from grpo.scenario import Scenario
from grpo.scenarios.ingest import ingest
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
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


def test_demonstrations_without_tools_have_the_arguments_that_were_written(tmp_path: Path):
    """The message of the user shows it: its `tool_calls` are null."""
    path = written(tmp_path, [{"messages": messages(name)} for name in CALLS])
    read = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert [conversation[1].tool_calls[0].arguments for conversation in read] == list(CALLS.values())


def test_mapped_columns_have_the_tools_and_calls_that_were_written(tmp_path: Path):
    rows = [
        {"said": name, "offers": [tool(name)], "right": [{"name": name, "arguments": CALLS[name]}]} for name in CALLS
    ]
    columns = {"user_responses": "said", "tools": "offers", "expected.calls": "right"}
    scenarios = ingested(tmp_path, kind="jsonl", path=str(written(tmp_path, rows)), columns=columns)
    assert [scenario.tools for scenario in scenarios] == [(tool("look_up"),), (tool("weather"),)]
    assert [dict(call["arguments"]) for scenario in scenarios for call in scenario.expected.calls] == [*CALLS.values()]


RECORDED = {"recorded": [{"name": "t", "arguments": {"a": None}, "result": 1}], "left": None}


@pytest.mark.parametrize(
    ("record", "cleaned"),
    [
        ({"expected": {"facts": None}, "world": RECORDED, "goal": None},
         {"expected": {}, "world": {"recorded": [{"name": "t", "arguments": {}, "result": 1}], "left": None}}),
        ({"tools": [{"parameters": {"properties": {"a": None, "u": {"enum": None, "items": {"x": None}}}}}]},
         {"tools": [{"parameters": {"properties": {"u": {"items": {}}}}}]}),
        ({"request": {"messages": [{"role": "tool", "content": "1", "tool_calls": None}], "n": None}},
         {"request": {"messages": [{"role": "tool", "content": "1"}]}}),
    ],
)  # fmt: skip
def test_a_record_that_a_table_has_filled_loses_its_nulls(record: dict[str, Any], cleaned: dict[str, Any]):
    """At any depth, but not in `world`, where only the arguments of recorded calls lose them."""
    assert without_filled_nulls(record) == cleaned


@pytest.mark.parametrize(
    "record",
    [
        {"tools": [{"name": "t", "parameters": {"properties": {"a": {"const": None, "default": None}}}}]},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": None, "refusal": None}]},
        {"tools": None, "expected": {"calls": [{"name": "t", "arguments": {"a": None}}]}, "world": RECORDED},
        {"tools": ["t", {"parameters": []}, {"function": {"parameters": {"properties": []}}}], "messages": ["", None]},
    ],
)
def test_a_null_that_somebody_may_have_written_stays(record: dict[str, Any]):
    """As a reply's fields in OpenAI's own dump, and the argument of a call that was made so."""
    assert without_filled_nulls(record) == record


def test_a_pair_may_be_about_a_null(tmp_path: Path):
    """The rejected reply gives a null where the chosen one leaves the argument out."""
    sides = [[{"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": given}}]}]
             for given in ({"a": 1}, {"a": 1, "b": None})]  # fmt: skip
    record = {"prompt": "Hello", "chosen": sides[0], "rejected": sides[1], "tools": [tool("look_up")]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(record))
    (pair,) = read_pairs(WrittenPairs(kind="jsonl", path=str(tmp_path / "pairs.jsonl")))
    assert pair.rejected.tool_calls[0].arguments == {"a": 1, "b": None}


def test_arrays_of_a_function_are_compared_with_nothing():
    """A function of the user may yield NumPy's arrays. `array == None` has no truth value."""
    record = {"expected": {"state": np.zeros(2)}, "tools": [{"parameters": {"properties": {"a": np.zeros(2)}}}]}
    assert without_filled_nulls(record) == record


def test_a_null_in_metadata_says_nothing_of_the_other_nulls():
    """Applications write such records, with an argument that the agent has given as null."""
    call = {"name": "set_name", "arguments": {"name": None}}
    record = {"metadata": {"note": None, "category": "c"}, "expected": {"calls": [call]}, "world": {"x": None}}
    assert without_filled_nulls(record) == {**record, "metadata": {"category": "c"}}
