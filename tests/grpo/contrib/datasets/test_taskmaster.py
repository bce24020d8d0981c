"""Taskmaster: coffee orders with calls, and labelled steps of an agent; JSON in strings."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.reward_data import read_labels


def call(number: int, name: str, request: str | None, response: str = '{"ok": true}') -> list[dict[str, str]]:
    """The annotations of a call and its result; without a request where it is None."""
    asked = [] if request is None else [{"name": "request", "value": request, "context": f"api_call_{number}"}]
    return [
        {"name": "api_call", "value": name, "context": f"api_call_{number}"},
        *asked,
        {"name": "api_response", "value": name, "context": f"api_response_{number}"},
        {"name": "response", "value": response, "context": f"api_response_{number}"},
    ]


def order(name: str, *annotations: dict[str, str]) -> dict[str, Any]:
    """A coffee order whose second turn of the user has these annotations."""
    lines = [("user", "A latte.", []), ("assistant", "Right?", []), ("user", f"Yes, {name}.", list(annotations))]
    return {
        "conversation_id": name,
        "vertical": "Coffee",
        "scenario": "order a latte ",
        "instructions": None,
        "utterances": [
            {"index": index, "speaker": speaker, "text": text, "segments": [], "annotations": parsed}
            for index, (speaker, text, parsed) in enumerate(lines)
        ],
    }


def step(name: str, generation: str, reward: float = 1.0, context: str | None = None) -> dict[str, Any]:
    """A labelled step after a call and its result."""
    before = [
        {"role": "agent", "text": "Welcome."},
        {"role": "user", "text": "A latte."},
        {"role": "agent", "api": {"find": {"query": "latte"}}},
        {"role": "api", "response": {"find": {"items": []}}},
    ]
    context = json.dumps(before) if context is None else context
    return {"conversation_id": name, "context": context, "generation": generation, "reward": reward}


def rewards(folder: Any, *steps: Any) -> Any:
    """A folder with these labelled steps in Taskmaster-3, and one in Taskmaster-4."""
    good = step("z", '{"role": "agent", "text": "Hello."}')
    return folder({"tm3/reward_00.json": list(steps), "tm4/reward_00.json": [good]})


def test_annotations_are_calls_with_their_results(folder, ingested):
    """They answer user turn 1; a call without a request has no arguments."""
    item = order("a", *call(0, "show_menu", None), *call(1, "add", '{"id": "7"}', '{"order": 1}'))
    _, (scenario,) = ingested("taskmaster", folder({"tm4/data_00.json": [item]}))
    assert scenario.expected.calls == (
        {"name": "show_menu", "arguments": {}, "turn": 1},
        {"name": "add", "arguments": {"id": "7"}, "turn": 1},
    )
    assert [entry["result"] for entry in scenario.world["recorded"]] == [{"ok": True}, {"order": 1}]
    assert scenario.user_responses == ("A latte.", "Yes, a.")
    assert scenario.metadata.category == "order a latte"


def test_the_tools_are_those_of_all_dialogues(folder, ingested):
    """The choice of the tool is left to the agent."""
    files = {
        "tm4/data_00.json": [order("a", *call(0, "add", "{}"))],
        "tm4/data_01.json": [order("b", *call(0, "end", "{}"))],
    }
    _, scenarios = ingested("taskmaster", folder(files))
    assert [[tool["name"] for tool in s.tools] for s in scenarios] == [["add", "end"]] * 2


@pytest.mark.parametrize(
    ("request_text", "response", "reason"),
    [
        ('{"id": ""latte""}', "{}", "request is not JSON"),
        ("[]", "{}", "request is not an object"),
        ("{}", '{"name": "\tx"}', "response is not JSON"),
    ],
)
def test_a_broken_call_quarantines_its_dialogue(folder, ingested, request_text, response, reason):
    """Doubled quotes and bare tabs occur in the published files."""
    items = [order("a", *call(0, "add", request_text, response)), order("b")]
    counts, _ = ingested("taskmaster", folder({"tm4/data_00.json": items}))
    assert (counts.scenarios, counts.reasons) == (1, {reason: 1})


def test_a_call_without_a_name_quarantines_its_dialogue_alone(folder, ingested):
    """Its name would be a tool of all dialogues."""
    items = [order("a", *call(0, " ", "{}")), order("b", *call(0, "add", "{}")), order("c")]
    counts, scenarios = ingested("taskmaster", folder({"tm4/data_00.json": items}))
    assert (counts.scenarios, counts.quarantined) == (2, 1)
    assert [[tool["name"] for tool in scenario.tools] for scenario in scenarios] == [["add"]] * 2


def test_missing_files_are_an_error(folder, ingested):
    """The message names the pattern of the files."""
    with pytest.raises(DataError, match=r"no data_\*\.json in .*tm4"):
        ingested("taskmaster", folder({"tm4/reward_00.json": []}))


def test_a_labelled_step_is_text_or_a_call(folder):
    """The context's calls and results are messages; 1 is good, 0 is bad."""
    parsed = read_labels(
        "taskmaster",
        rewards(
            folder,
            step("a", '{"role": "agent", "api": {"add": {"n": 1}}}'),
            step("b", '{"role": "agent", "text": "Hm."}', 0.0),
        ),
    )
    first, second, _ = parsed.items
    assert first.prompt == (
        Message(role="assistant", content="Welcome."),
        Message(role="user", content="A latte."),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="find", arguments={"query": "latte"}),)),
        Message(role="tool", content='{"find": {"items": []}}'),
    )
    assert first.reply.tool_calls == (ToolCall(name="add", arguments={"n": 1}),)
    assert [(item.label, item.score, item.category) for item in (first, second)] == [
        ("good", 1, "tm3"),
        ("bad", 0, "tm3"),
    ]


def test_steps_after_one_context_are_one_group(folder):
    """Short orders begin with the same turns; a split keeps them together."""
    steps = [
        step(name, '{"role": "agent", "text": "Hm."}', context=context)
        for name, context in (
            ("a", '[{"role": "user", "text": "Hi."}]'),
            ("b", '[{"role": "user", "text": "Hi."}]'),
            ("c", '[{"role": "user", "text": "Ho."}]'),
        )
    ]
    groups = [item.group for item in read_labels("taskmaster", rewards(folder, *steps)).items]
    assert groups[0] == groups[1] != groups[2]


def test_steps_that_cannot_be_read_are_counted(folder):
    """Each has its reason and place."""
    bad = [
        step("a", "{"),
        step("b", '{"role": "agent", "text": " "}'),
        step("c", '{"role": "cook", "text": "Hi."}'),
        step("d", '{"role": "agent", "text": "Hi."}', context="["),
        step("e", '{"role": "agent", "text": "Hi."}', context="[]"),
        step("f", '{"role": "agent", "text": "Hi."}', 0.5),
        step("g", '{"role": "user"}'),
        step("h", '{"role": "agent", "text": true}'),
        step("i", '{"role": "agent", "text": "Hi."}', context="7"),
    ]
    parsed = read_labels("taskmaster", rewards(folder, *bad))
    assert (parsed.records, len(parsed.items)) == (10, 1)
    assert set(parsed.reasons) == {
        "generation is not JSON",
        "reply: reply is empty",
        "unknown step",
        "context is not JSON",
        "context is empty",
        "not as published",
    }
    assert [place.line for place in parsed.quarantined] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def readable(text: str) -> bool:
    """True for a string of JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_every_published_order_is_a_scenario_or_quarantined(published, ingested):
    """710 orders; in 4 of them a request or a response is not JSON."""
    folder = published("taskmaster")
    raw = [item for path in (folder / "tm4").glob("data_*.json") for item in json.loads(path.read_text())]
    broken = {
        item["conversation_id"]
        for item in raw
        for lines in item["utterances"]
        for parsed in lines["annotations"]
        if parsed["name"] in ("request", "response") and not readable(parsed["value"])
    }
    counts, scenarios = ingested("taskmaster", folder)
    assert (counts.records, counts.quarantined) == (len(raw), len(broken)) == (710, 4)
    assert {s.id.removeprefix("taskmaster-") for s in scenarios} == {i["conversation_id"] for i in raw} - broken
    calls = Counter(
        parsed["value"]
        for item in raw
        if item["conversation_id"] not in broken
        for lines in item["utterances"]
        for parsed in lines["annotations"]
        if parsed["name"] == "api_call"
    )
    assert Counter(call["name"] for s in scenarios for call in s.expected.calls) == calls


def test_every_published_step_is_labelled_or_quarantined(published):
    """3000 steps of Taskmaster-3 and 1500 of Taskmaster-4; two of them are empty."""
    folder = published("taskmaster")
    raw = [
        x
        for name in ("tm3", "tm4")
        for path in (folder / name).glob("reward_*.json")
        for x in json.loads(path.read_text())
    ]
    silent = [x for x in raw if not json.loads(x["generation"]).get("text", "call").strip()]
    parsed = read_labels("taskmaster", folder)
    assert (parsed.records, len(parsed.quarantined)) == (len(raw), len(silent)) == (4500, 2)
    assert sum(item.label == "good" for item in parsed.items) == sum(x["reward"] == 1 for x in raw if x not in silent)
