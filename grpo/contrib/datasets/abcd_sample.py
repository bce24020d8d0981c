"""ABCD: customer service dialogues with the agent's actions, as the knowledge base prescribes them.

    scenario.personal, order, product    → world
    the customer's lines                  → user_responses, with consecutive lines as one turn
    the agent's lines after it            → expected.responses
    targets of the actions                → expected.calls, values in the order of the agent's input
    ontology.json                         → tools
    kb.json                               → context: the actions of this kind of request

An order's products are a Python literal in a string. The agent's opening, the delexicalised turns and the ranking
candidates are left out. So is guidelines.json, because its titles are not the names of the sub-flows.

https://github.com/asappresearch/abcd, MIT
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import find_parts
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.readers.files.source_files import read_document
from grpo.scenarios.readers.messages.speaker_turns import user_turns_and_replies
from grpo.scenarios.records import SourceRecord, convert_records, read_all_records

_QUESTION = re.compile(r"_\d+$")


class _Setting(BaseModel):
    personal: dict[str, Any]
    order: dict[str, Any]
    product: dict[str, Any]
    flow: str
    subflow: str


class _Turn(BaseModel):
    speaker: str
    targets: tuple[Any, ...]


class _Conversation(BaseModel):
    convo_id: int
    scenario: _Setting
    original: tuple[tuple[str, str], ...]
    delexed: tuple[_Turn, ...]


class _Ontology(BaseModel):
    actions: dict[str, dict[str, tuple[str, ...]]]


def read_abcd_sample(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the conversations of the parts (default `abcd_sample`), one record each.

    Raises `DataError` if a file is missing or broken.
    """
    places = find_parts(
        folder, parts or ("abcd_sample",), {"abcd_sample": ("abcd_sample.json", "data/abcd_sample.json")}
    )
    place = places[0].path.parent
    steps = read_document(place / "kb.json")
    tools = _tools(place / "ontology.json")

    def fields(conversation: _Conversation, _: int) -> dict[str, Any]:
        setting = conversation.scenario
        lines = [line for line in conversation.original if line[0] != "action"]
        customer, agent = user_turns_and_replies(lines, "customer")
        actions = steps.get(_QUESTION.sub("", setting.subflow), [])
        return {
            "id": f"abcd-{conversation.convo_id}",
            "topic": setting.subflow,
            "domain": "customer_service",
            "user_responses": customer,
            "context": f"Request: {setting.flow}, {setting.subflow}. Actions: {', '.join(actions)}.",
            "tools": tools,
            "world": {
                "personal": setting.personal,
                "order": {**setting.order, **_products(setting.order)},
                "product": setting.product,
            },
            "expected": {"responses": agent, "calls": _calls(conversation.delexed)},
            "metadata": {"category": setting.flow, "source": "abcd", "licence": "MIT"},
        }

    for part in places:
        yield from convert_records(read_json(part.path), _Conversation, fields)


def _tools(path: Path) -> list[dict[str, Any]]:
    document = SourceRecord(source=str(path), line=1, data=read_document(path))
    (ontology,) = read_all_records([document], _Ontology)
    return [
        {
            "name": name,
            "description": kind.replace("_", " "),
            "parameters": {
                "type": "object",
                "properties": {
                    "values": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": f"any of: {', '.join(slots)}" if slots else "none",
                    }
                },
                "required": ["values"],
            },
        }
        for kind, actions in ontology.actions.items()
        for name, slots in actions.items()
    ]


def _products(order: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(order.get("products"), str):
        return {}
    try:
        return {"products": ast.literal_eval(order["products"])}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"products are not a Python literal: {order['products']:.80}") from error


def _calls(turns: tuple[_Turn, ...]) -> list[dict[str, Any]]:
    """Targets are (sub-flow, next step, action, values, utterance)."""
    calls, turn, speaker = [], -1, ""
    for item in turns:
        if item.speaker == "action":
            _, _, name, values, *_ = item.targets
            calls.append({"name": name, "arguments": {"values": values}, "turn": max(turn, 0)})
            continue
        turn += item.speaker == "customer" and speaker != "customer"
        speaker = item.speaker
    return calls
