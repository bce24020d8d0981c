"""Calls that are written as text in Python, and the tools of a system prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.messages.written_calls import listed_tools, with_written_calls
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE

TOOLS = [
    {"name": "Order API", "description": "Look up.", "required": None,
     "parameters": {"type": "dict", "properties": {"order": {"type": "string"}}, "required": ["order"]}},
    {"name": "v1/cancel", "description": "Cancel.", "parameters": {"type": "dict", "properties": {}}},
]  # fmt: skip
SYSTEM = (
    "You are an expert in composing functions. Here is a list of functions in JSON format that you can invoke:\n"
    f"{json.dumps(TOOLS)}. \nShould you decide to return the function call(s). \nPut it in the format of "
    "[func1(params_name=params_value, params_name2=params_value2...), func2(params)]\n\nNO other text MUST be included."
)
FAULT = "calls in the text cannot be read: message 1:"
USER, REPLY = {"from": "user", "value": ASKED}, {"from": "assistant", "value": DONE}


def calls(text: str) -> dict[str, Any]:
    return {"from": "assistant", "value": text}


def results(*values: tuple[str, Any]) -> dict[str, Any]:
    return {"from": "tool", "value": json.dumps([{"name": name, "results": value} for name, value in values])}


def read(tmp_path: Path, *turns: dict[str, Any], **fields: Any) -> SourceRecord:
    """The record of a file of ToolACE, as it is guessed if nothing else is wrong with it."""
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"system": SYSTEM, "conversations": [USER, *turns], **fields}]))
    (record,) = read_records(ChatSource(kind="sharegpt", path=str(path)))
    return record


def test_a_chat_of_toolace_has_its_calls_with_their_results(tmp_path: Path):
    """Two calls have one message with both results; values of Python and JSON are JSON afterwards."""
    text = (
        '[Order API(order="it\'s, (7)", most=-2, open=True, other=null), v1/cancel(), '
        'Order API(order=["7", {"a": 1.5}])]'
    )
    record = read(
        tmp_path, calls(text), results(("Order API", {"state": "lost"}), ("v1/cancel", "done"), ("Order API", 3)), REPLY
    )
    assert record.data is not None, record.problem
    assert record.data["world"]["recorded"] == [
        {"name": "Order API", "arguments": {"order": "it's, (7)", "most": -2, "open": True, "other": None}, "turn": 0,
         "result": {"state": "lost"}},
        {"name": "v1/cancel", "arguments": {}, "turn": 0, "result": "done"},
        {"name": "Order API", "arguments": {"order": ["7", {"a": 1.5}]}, "turn": 0, "result": 3},
    ]  # fmt: skip
    assert record.data["expected"] == {"responses": [DONE]}
    assert [(tool["name"], tool["parameters"]["type"]) for tool in record.data["tools"]] == [
        ("Order API", "object"), ("v1/cancel", "object"),
    ]  # fmt: skip
    assert guess_source(tmp_path / "data.json").kind == "sharegpt"


def test_the_calls_that_a_record_ends_with_are_expected(tmp_path: Path):
    """They are not a text to be compared with."""
    record = read(tmp_path, calls(' [Order API(order="7")]\n'))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {
        "responses": [], "calls": [{"name": "Order API", "arguments": {"order": "7"}, "turn": 0}],
    }  # fmt: skip


def test_calls_with_results_need_no_declaration(tmp_path: Path):
    """The tool is inferred. A result without its name is the result of the only call."""
    record = read(tmp_path, calls('[look_up(order="7")]'), {"from": "tool", "value": "lost"}, REPLY, system="Be kind.")
    assert record.data is not None, record.problem
    assert record.data["world"]["recorded"] == [
        {"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}
    ]
    assert [tool["name"] for tool in record.data["tools"]] == ["look_up"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[Order API("7")]', f"{FAULT} an argument has no name"),
        ('[Order API(order="7"), v1/cancel("8")]', f"{FAULT} an argument has no"),
        ('[Order API(order="7", order="8")]', f"{FAULT} the argument order comes tw"),
        ('[Order API(order={"a": 1, "a": 2})]', f"{FAULT} a key of an object comes"),
        ("[Order API(order=__import__('os').getcwd())]", f"{FAULT} not a literal: __import__('os').getcwd()"),
        ("[Order API(order=seven)]", f"{FAULT} not a literal: seven. Write them as [name(key=value)]"),
        ('[Order API(order="7") Order API(order="8")]', f"{FAULT} no comma before"),
        ('[Order API(order="7")), v1/cancel()]', f"{FAULT} no comma before )"),
        ('[Order API(order="7"), other(order="7")]', "call of an unknown tool in a text: message 1 calls other, and"),
        ('[other(order="7")]', "call of an unknown tool in a text: message 1 calls other, and the record has no such"),
        (f"[Order API(order={'(' * 5000}{')' * 5000})]", f"{FAULT} too many nested"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_read_quarantine_the_record(tmp_path: Path, text: str, problem: str):
    """Nothing is evaluated."""
    assert (read(tmp_path, calls(text)).problem or "").startswith(problem)


@pytest.mark.parametrize(
    "text", ["[1] and [Order API(order=7)]", "[see (7)]", "[Order API(order=7)] is what I would call.", "[]"]
)
def test_a_text_that_mentions_a_call_stays_a_text(tmp_path: Path, text: str):
    """Only a text that is nothing but calls is calls."""
    record = read(tmp_path, calls(text))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": [text]}


def test_a_text_in_this_form_stays_a_text_where_nothing_is_known_of_tools():
    """A record without tools and results."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": '[f(x="7")]'}]
    assert with_written_calls(messages, None) == messages


def test_a_very_long_text_is_not_searched_for_calls():
    """Over 100,000 characters."""
    messages = [{"role": "assistant", "content": f'[f(x="{"7" * 100_000}")]'}]
    assert with_written_calls(messages, [{"name": "f"}]) == messages


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (SYSTEM, ["Order API", "v1/cancel"]),
        (f"Tools: {TOOLS}", ["Order API", "v1/cancel"]),
        ('The list [{"name": "Ann"}] has no tools.', None),
        ("[" * 100_000, None),
        ('[{"' * 50_000, None),
        (None, None),
    ],
)
def test_the_tools_of_a_system_prompt_are_found(text: Any, names: list[str] | None):
    """In JSON and in Python. A list of something else is not a list of tools."""
    tools = listed_tools(text)
    assert (None if tools is None else [tool["name"] for tool in tools]) == names


@pytest.mark.parametrize("mark", ["<tool_call>\n{}\n</tool_call>", "<functioncall> {}"])
@pytest.mark.parametrize("arguments", ["{'order': '7'}", '\'{"order": "7"}\''])
def test_a_call_as_an_object_of_python_is_read_between_marks(tmp_path: Path, mark: str, arguments: str):
    """As Hermes' and Glaive's data sets have them, with the arguments as an object or as JSON in a text."""
    text = mark.replace("{}", f"{{'name': 'look_up', 'arguments': {arguments}}}")
    record = read(tmp_path, calls(text), system="Be kind.")
    assert record.data is not None, record.problem
    assert record.data["expected"]["calls"] == [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0}]


STEP = '\nThought: I look.\nAction: look_up\nAction Input: {"order": "7"}'
FINISH = '\nThought: \nAction: Finish\nAction Input: {"return_type": "give_answer", "final_answer": "It is lost."}'
LISTED = f"You can use these APIs: {[{'name': 'look_up', 'description': 'It is', 'parameters': {'properties': {}}}]}"


@pytest.mark.parametrize("role", ["function", "observation"])
def test_the_actions_of_toolbench_are_calls_and_the_last_one_is_the_reply(tmp_path: Path, role: str):
    """Thoughts are left out, and so is the form of the reply. The tools are written in Python."""
    record = read(tmp_path, calls(STEP), {"from": role, "value": "lost"}, calls(FINISH), system=LISTED)
    assert record.data is not None, record.problem
    recorded = [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": "lost"}]
    assert (record.data["world"], record.data["expected"]) == ({"recorded": recorded}, {"responses": [DONE]})
    assert "message.reasoning: the reasoning before a reply does not belong to a reference" in record.ignored


def test_the_action_that_a_record_ends_with_is_expected(tmp_path: Path):
    """ToolBench has a record for each step of an episode."""
    record = read(tmp_path, calls(STEP), system=LISTED)
    assert record.data is not None, record.problem
    assert record.data["expected"]["calls"] == [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0}]


def test_an_agent_that_gave_up_left_no_reference(tmp_path: Path):
    """The turn stays, as with weight 0."""
    given_up = 'Thought: I fail.\nAction: Finish\nAction Input: {"return_type": "give_up_and_restart"}'
    tools = [{"name": "Finish"}, {"name": "look_up"}]
    record = read(tmp_path, calls(STEP), {"from": "function", "value": "x"}, calls(given_up), system="", tools=tools)
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": []}


def test_an_action_whose_input_is_not_json_quarantines_the_record(tmp_path: Path):
    """A text that mentions an action of an unknown tool stays a text."""
    broken = "Thought: I look.\nAction: look_up\nAction Input: order 7"
    assert (read(tmp_path, calls(broken), system=LISTED).problem or "").startswith(f"{FAULT} not JSON")
    other = broken.replace("look_up", "walk")
    record = read(tmp_path, calls(other), system=LISTED)
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": [other]}
