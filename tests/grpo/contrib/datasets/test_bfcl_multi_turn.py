"""BFCL: requests with services, a state, and calls that are Python in strings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo.contrib.datasets.bfcl_multi_turn import read_bfcl_multi_turn
from grpo.errors import DataError

FILE = "BFCL_v4_multi_turn_base.json"
SORT = {
    "name": "sort",
    "description": "Sort lines.",
    "parameters": {
        "type": "dict",
        "properties": {
            "file_name": {"type": "string"},
            "limits": {"type": "array", "items": {"type": "float"}},
            "type": {"type": "dict", "properties": {"x": {"type": "float"}}},
        },
        "required": ["file_name"],
    },
}
CP = {"name": "cp", "description": "", "parameters": {"type": "dict", "properties": {}, "required": []}}
DOCS = (
    "gorilla_file_system",
    "math_api",
    "message_api",
    "ticket_api",
    "trading_bot",
    "travel_booking",
    "posting_api",
    "vehicle_control",
)


def task(name: str, **more: Any) -> dict[str, Any]:
    """A task of two requests."""
    return {
        "id": name,
        "question": [[{"role": "user", "content": "Sort it."}], [{"role": "user", "content": "Again."}]],
        "initial_config": {"GorillaFileSystem": {"root": {}}},
        "path": [],
        "involved_classes": ["GorillaFileSystem", "MessageAPI"],
        **more,
    }


def source(folder: Any, tasks: list[Any], **truth: list[list[str]]) -> Any:
    """A folder with these tasks and the expected calls, by request."""
    docs = {f"multi_turn_func_doc/{name}.json": "" for name in DOCS}
    docs["multi_turn_func_doc/gorilla_file_system.json"] = f"{json.dumps(SORT)}\n{json.dumps(CP)}\n"
    answers = [{"id": name, "ground_truth": calls} for name, calls in truth.items()]
    lines = {FILE: tasks, f"possible_answer/{FILE}": answers}
    return folder({**docs, **{name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in lines.items()}})


def test_calls_in_strings_are_parsed_with_the_names_of_their_arguments(folder, ingested):
    """A call has the number of its request; an argument without a name gets it from the docs."""
    where = source(folder, [task("a")], a=[["sort('x', limits=[1, -.5])"], ["cp()", "sort(file_name='y')"]])
    _, (scenario,) = ingested("bfcl_multi_turn", where)
    assert scenario.expected.calls == (
        {"name": "sort", "arguments": {"file_name": "x", "limits": [1, -0.5]}, "turn": 0},
        {"name": "cp", "arguments": {}, "turn": 1},
        {"name": "sort", "arguments": {"file_name": "y"}, "turn": 1},
    )
    assert scenario.user_responses == ("Sort it.", "Again.")


def test_types_become_those_of_json_schema(folder, ingested):
    """Nested types too; a property with the name `type` is left as it is."""
    _, (scenario,) = ingested("bfcl_multi_turn", source(folder, [task("a")], a=[[], []]))
    parameters = scenario.tools[0]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"]["limits"]["items"] == {"type": "number"}
    assert parameters["properties"]["type"] == {"type": "object", "properties": {"x": {"type": "number"}}}


def test_excluded_functions_are_left_out_and_every_service_has_a_state(folder, ingested):
    """A service without a configuration starts empty."""
    _, (scenario,) = ingested("bfcl_multi_turn", source(folder, [task("a", excluded_function=["cp"])], a=[[], []]))
    assert [tool["name"] for tool in scenario.tools] == ["sort"]
    assert scenario.world == {"GorillaFileSystem": {"root": {}}, "MessageAPI": {}}


@pytest.mark.parametrize(
    "call",
    [
        "sort(open('x'))",
        "rm('x')",
        "sort('a', 1, 2, 3)",
        "x = 1",
        "sort",
        "a.sort()",
        "sort(**{})",
        "sort(size=1)",
        "sort('a', file_name='b')",
    ],
)
def test_text_other_than_a_call_with_literals_is_quarantined(folder, ingested, call):
    """The text is not run; the other task is read."""
    counts, _ = ingested("bfcl_multi_turn", source(folder, [task("a"), task("b")], a=[[call]], b=[[]]))
    assert (counts.scenarios, counts.reasons) == (1, {"not a call": 1})


def test_a_task_without_an_answer_or_of_an_unknown_service_is_quarantined(folder, ingested):
    """Both are counted by their reason."""
    tasks = [task("a"), task("b"), task("c", involved_classes=["Oven"])]
    counts, _ = ingested("bfcl_multi_turn", source(folder, tasks, a=[[]], c=[[]]))
    assert counts.reasons == {"no ground truth": 1, "unknown service": 1}


def miss_func(folder: Any, **more: Any) -> Any:
    """A folder whose part `miss_func` has one task: the second turn is empty and adds `sort`."""
    item = task("a", missed_function={"1": ["sort"]}, **more)
    item["question"].insert(1, [])
    where = source(folder, [item], a=[[], ["sort('x')"], []])
    for place in (where, where / "possible_answer"):
        (place / FILE).rename(place / FILE.replace("base", "miss_func"))
    return where


def test_an_empty_turn_that_adds_a_function_gets_a_text_and_the_function_its_turn(folder):
    """The text announces more functions; `cp` is available from the beginning."""
    (record,) = read_bfcl_multi_turn(miss_func(folder), ("miss_func",))
    assert record.data is not None, record.problem
    first, announcement, last = record.data["user_responses"]
    assert (first, last) == ("Sort it.", "Again.")
    assert "more functions" in announcement
    assert {tool["name"]: tool.get("from_turn") for tool in record.data["tools"]} == {"sort": 1, "cp": None}


def test_an_empty_turn_without_a_new_function_is_quarantined(folder, ingested):
    """Only a missing function allows an empty turn."""
    item = task("a")
    item["question"][1] = []
    counts, _ = ingested("bfcl_multi_turn", source(folder, [item, task("b")], a=[[], []], b=[[]]))
    assert counts.reasons == {"user_responses: user turn N is empty": 1}


def test_a_missing_function_of_no_service_is_quarantined(folder):
    """The name is in the reason."""
    (record,) = read_bfcl_multi_turn(miss_func(folder, involved_classes=["MessageAPI"]), ("miss_func",))
    assert record.problem == "unknown missed function: sort"


def test_a_missing_part_is_named_with_the_existing_ones(folder):
    """`base` is here, `miss_param` is not."""
    with pytest.raises(DataError, match=r"has no miss_param \(BFCL_v4_multi_turn_miss_param\.json\)\. There is base\."):
        list(read_bfcl_multi_turn(source(folder, [task("a")], a=[[]]), ("miss_param",)))


def test_every_published_task_is_a_scenario(published, ingested):
    """200 tasks with 1142 calls, as counted by their brackets; 734 requests."""
    folder = published("bfcl_multi_turn")
    counts, scenarios = ingested("bfcl_multi_turn", folder)
    truth = [json.loads(line) for line in (folder / "possible_answer" / FILE).read_text().splitlines()]
    assert (counts.records, counts.scenarios) == (len(truth), 200)
    assert (
        sum(len(s.expected.calls) for s in scenarios)
        == sum(len(t) for row in truth for t in row["ground_truth"])
        == 1142
    )
    assert sum(len(s.user_responses) for s in scenarios) == sum(len(row["ground_truth"]) for row in truth) == 734
    for scenario in scenarios:
        tools = {tool["name"]: tool for tool in scenario.tools}
        assert all(
            set(c["arguments"]) <= set(tools[c["name"]]["parameters"]["properties"]) for c in scenario.expected.calls
        )
