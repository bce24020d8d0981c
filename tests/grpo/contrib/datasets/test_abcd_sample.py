"""ABCD: conversations with actions become scenarios with tools, a world and expected calls."""

from __future__ import annotations

import json
from typing import Any

KB = {"refund": ["pull-up-account", "offer-refund"], "timing": ["search-faq"]}
ONTOLOGY = {"actions": {"kb_query": {"pull-up-account": ["customer_name"]}, "faq_policy": {"search-faq": []}}}


def conversation(products: str = "[{'brand': 'x', 'amount': 94}]", subflow: str = "refund") -> dict[str, Any]:
    """The agent begins; the customer's second turn has two lines, with an action between them."""
    lines = [
        ("agent", "Hello.", None),
        ("customer", "I want a refund.", None),
        ("agent", "Your name?", None),
        ("customer", "Ann", None),
        ("action", "Account pulled up.", ["pull-up-account", ["ann"]]),
        ("customer", "Ito", None),
        ("agent", "Done.", None),
        ("agent", "Bye.", None),
    ]
    return {
        "convo_id": 7,
        "scenario": {
            "personal": {"customer_name": "ann"},
            "order": {"order_id": "1", "products": products},
            "product": {"names": ["x"]},
            "flow": "product_defect",
            "subflow": subflow,
        },
        "original": [[speaker, text] for speaker, text, _ in lines],
        "delexed": [
            {"speaker": speaker, "text": text.lower(), "targets": ["refund", None, *(target or [None, []]), -1]}
            for speaker, text, target in lines
        ],
    }


def source(folder: Any, *conversations: Any) -> Any:
    """A folder with these conversations."""
    return folder({"abcd_sample.json": list(conversations), "kb.json": KB, "ontology.json": ONTOLOGY})


def test_the_customer_begins_and_consecutive_lines_are_one_turn(folder, ingested):
    """The agent's greeting is left out; its later turns are the references."""
    _, (scenario,) = ingested("abcd_sample", source(folder, conversation()))
    assert scenario.user_responses == ("I want a refund.", "Ann\nIto")
    assert scenario.expected.responses == ("Your name?", "Done.\nBye.")


def test_an_action_is_a_call_in_the_turn_that_it_answers(folder, ingested):
    """The action is in the second customer turn, number 1."""
    _, (scenario,) = ingested("abcd_sample", source(folder, conversation()))
    assert scenario.expected.calls == ({"name": "pull-up-account", "arguments": {"values": ["ann"]}, "turn": 1},)
    assert [tool["name"] for tool in scenario.tools] == ["pull-up-account", "search-faq"]


def test_products_in_a_string_are_parsed_and_broken_ones_quarantined(folder, ingested):
    """They are Python literals; any other text quarantines its record alone."""
    broken = {**conversation("[{'brand': open('x')}]"), "convo_id": 8}
    counts, (scenario,) = ingested("abcd_sample", source(folder, conversation(), broken, "no object"))
    assert scenario.world["order"]["products"] == [{"brand": "x", "amount": 94}]
    assert (counts.records, counts.reasons) == (3, {"products are not a Python literal": 1, "not an object": 1})


def test_the_context_names_the_actions_of_the_request(folder, ingested):
    """The knowledge base has the name without a question's number: timing for timing_4."""
    _, (scenario,) = ingested("abcd_sample", source(folder, conversation(subflow="timing_4")))
    assert scenario.context == "Request: product_defect, timing_4. Actions: search-faq."


def test_the_published_conversations_are_scenarios(published, ingested):
    """3 conversations with 4 + 2 + 3 actions."""
    folder = published("abcd_sample")
    counts, scenarios = ingested("abcd_sample", folder)
    raw = json.loads((folder / "abcd_sample.json").read_text())
    assert (counts.records, counts.quarantined) == (len(raw), 0) == (3, 0)
    assert [len(s.expected.calls) for s in scenarios] == [
        sum(speaker == "action" for speaker, _ in item["original"]) for item in raw
    ]
