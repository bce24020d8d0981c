"""Schema-Guided Dialogue: dialogues over services with schemas."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from grpo.errors import DataError

SCHEMA = [
    {
        "service_name": name,
        "description": "",
        "slots": [
            {"name": "city", "description": "Where", "is_categorical": False, "possible_values": []},
            {"name": "size", "description": "How many", "is_categorical": True, "possible_values": ["1", "2"]},
        ],
        "intents": [
            {
                "name": intent,
                "description": intent,
                "is_transactional": changing,
                "required_slots": ["city"],
                "optional_slots": {"size": "dontcare"},
                "result_slots": [],
            }
        ],
    }
    for name, intent, changing in (("Food_1", "Find", False), ("Food_2", "Find", False), ("Bus_1", "Book", True))
]


def dialogue(name: str, *services: str, calls: tuple[str, ...] = (), first: str = "Hi.") -> dict[str, Any]:
    """Two user turns; the calls are made in answer to the second."""
    frames = [
        {
            "service": services[0],
            "actions": [],
            "slots": [],
            "service_call": {"method": method, "parameters": {"city": "Rome"}},
            "service_results": [],
        }
        for method in calls
    ]
    turns = [("USER", first, []), ("SYSTEM", "Where?", []), ("USER", "Rome.", []), ("SYSTEM", "None found.", frames)]
    return {
        "dialogue_id": name,
        "services": list(services),
        "turns": [
            {"speaker": speaker, "utterance": text, "frames": frames_of_turn} for speaker, text, frames_of_turn in turns
        ],
    }


def source(folder: Any, train: list[Any], dev: tuple[Any, ...] = (dialogue("9", "Bus_1", first="Hey."),)) -> Any:
    """A folder with both parts."""
    return folder(
        {
            "train/schema.json": SCHEMA,
            "train/dialogues_001.json": train,
            "dev/schema.json": SCHEMA,
            "dev/dialogues_001.json": list(dev),
        }
    )


def test_calls_and_their_results_are_kept(folder, ingested):
    """A call that found nothing returned an empty list; it answers user turn 1."""
    _, (scenario, _) = ingested("sgd", source(folder, [dialogue("1", "Food_1", calls=("Find",))]))
    assert scenario.expected.calls == ({"name": "Find", "arguments": {"city": "Rome"}, "turn": 1},)
    assert scenario.world["recorded"] == [{"name": "Find", "arguments": {"city": "Rome"}, "result": []}]
    assert scenario.expected.responses == ("Where?", "None found.")


def test_an_intent_is_a_tool(folder, ingested):
    """A default is an allowed value even if it is not listed."""
    _, (scenario, _) = ingested("sgd", source(folder, [dialogue("1", "Food_1")]))
    (tool,) = scenario.tools
    assert tool["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where"},
            "size": {
                "type": "string",
                "description": "How many",
                "enum": ["1", "2", "dontcare"],
                "default": "dontcare",
            },
        },
        "required": ["city"],
    }


def test_the_category_is_transaction_or_search(folder, ingested):
    """Booking is a transaction, finding a search; the parts are the splits."""
    train = [dialogue("1", "Food_1", calls=("Find",)), dialogue("2", "Bus_1", calls=("Book",), first="Hello.")]
    _, scenarios = ingested("sgd", source(folder, train))
    assert [(s.metadata.category, s.split) for s in scenarios] == [
        ("search", "train"),
        ("transaction", "train"),
        ("search", "heldout"),
    ]


def test_unknown_services_ambiguous_tools_and_other_fields_are_quarantined(folder, ingested):
    """Food_1 and Food_2 have a tool of the same name, which makes a call ambiguous."""
    train = [dialogue("1", "Oven_1"), dialogue("2", "Food_1", "Food_2"), {"dialogue_id": "3"}]
    counts, _ = ingested("sgd", source(folder, train))
    assert (counts.records, counts.scenarios) == (4, 1)
    assert counts.reasons == {"unknown service": 1, "two tools of one name": 1, "not as published": 1}


def test_a_part_without_dialogues_is_an_error(folder, ingested):
    """The message names the folder."""
    with pytest.raises(DataError, match=r"no dialogues_\*\.json in .*train"):
        ingested("sgd", folder({"train/schema.json": SCHEMA, "dev/schema.json": SCHEMA}))


def test_every_published_dialogue_is_a_scenario(published, ingested):
    """383 + 196 dialogues with 1363 calls, 92 of which found nothing."""
    folder = published("sgd")
    raw = {
        name: [x for p in (folder / name).glob("dialogues*") for x in json.loads(p.read_text())]
        for name in ("train", "dev")
    }
    frames = [
        f for part in raw.values() for x in part for turn in x["turns"] for f in turn["frames"] if "service_call" in f
    ]
    counts, scenarios = ingested("sgd", folder)
    assert counts.records == counts.scenarios == len(raw["train"]) + len(raw["dev"]) == 579
    assert Counter(s.split for s in scenarios) == {"train": 383, "heldout": 196}
    assert sum(len(s.expected.calls) for s in scenarios) == len(frames) == 1363
    recorded = [call for s in scenarios for call in s.world["recorded"]]
    assert sum(not call["result"] for call in recorded) == sum(not f["service_results"] for f in frames) == 92
