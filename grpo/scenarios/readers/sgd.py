"""Schema-Guided Dialogue: a user and an assistant that calls services, whose schemas are published.

    USER utterances        → user_responses
    SYSTEM utterances      → expected.responses, reply k to turn k
    service_call           → expected.calls; `turn` says which user turn it answers
    service_results        → world.recorded: what each call returned; some returned nothing
    schema.json            → tools: the intents of the dialogue's services
    train, dev             → side

The development part has services that the training part has not, so the category says what is done (search, or a
transaction), and the topic names the services.

https://github.com/google-research-datasets/dstc8-schema-guided-dialogue, CC-BY-SA-4.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.errors import DataError
from grpo.scenarios.readers.files import read_document
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import declare_sides, grade, reshape

Schemas = Mapping[str, Mapping[str, Any]]


class _Call(BaseModel):
    method: str
    parameters: dict[str, Any]


class _Frame(BaseModel):
    service: str
    service_call: _Call | None = None
    service_results: tuple[dict[str, Any], ...] = ()


class _Turn(BaseModel):
    speaker: Literal["USER", "SYSTEM"]
    utterance: str
    frames: tuple[_Frame, ...]


class _Dialogue(BaseModel):
    dialogue_id: str
    services: tuple[str, ...]
    turns: tuple[_Turn, ...]


def read_sgd(folder: Path) -> Iterator[Record]:
    """Read `train/dialogues_*.json` and `dev/dialogues_*.json`, one record a dialogue, `line` being its number.

    Raises `DataError` where a part has no dialogues or no schema, or one of them is broken.
    """
    yield from declare_sides(_read(folder / "train"), _read(folder / "dev"))


def _read(part: Path) -> Iterator[Record]:
    document = read_document(part / "schema.json")
    schemas = {service["service_name"]: service for service in document}
    paths = sorted(part.glob("dialogues_*.json"))
    if not paths:
        raise DataError(f"no dialogues_*.json in {part}; fetch the published files again")

    def fields(found: _Dialogue, _: int) -> dict[str, Any]:
        unknown = [name for name in found.services if name not in schemas]
        if unknown:
            raise ValueError(f"unknown service: {', '.join(unknown)}")
        return _scenario(found, part.name, {name: schemas[name] for name in found.services})

    for path in paths:
        yield from reshape(read_json(path), _Dialogue, fields)


def _scenario(found: _Dialogue, part: str, schemas: Schemas) -> dict[str, Any]:
    tools = [_tool(intent, service) for service in schemas.values() for intent in service["intents"]]
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError(f"two tools of one name: {', '.join(found.services)}")
    changing = {i["name"] for service in schemas.values() for i in service["intents"] if i["is_transactional"]}
    calls, recorded, turn = [], [], -1
    for said in found.turns:
        turn += said.speaker == "USER"
        for frame in said.frames:
            if frame.service_call is not None:
                call = {"name": frame.service_call.method, "arguments": frame.service_call.parameters}
                calls.append({**call, "turn": turn})
                recorded.append({**call, "result": list(frame.service_results)})
    return {
        "id": f"sgd-{part}-{found.dialogue_id}",
        "topic": "+".join(found.services),
        "domain": "tool_use",
        "user_responses": [said.utterance for said in found.turns if said.speaker == "USER"],
        "tools": tools,
        "world": {"recorded": recorded},
        "expected": {
            "responses": [said.utterance for said in found.turns if said.speaker == "SYSTEM"],
            "calls": calls,
        },
        "metadata": {
            "category": "transaction" if any(call["name"] in changing for call in calls) else "search",
            "difficulty": grade(len(calls), easy=1, medium=2),
            "source": "sgd",
            "licence": "CC-BY-SA-4.0",
        },
    }


def _tool(intent: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    slots = {slot["name"]: slot for slot in service["slots"]}
    properties = {}
    for name in (*intent["required_slots"], *intent["optional_slots"]):
        properties[name] = {"type": "string", "description": slots[name]["description"]}
        if slots[name]["is_categorical"]:
            properties[name]["enum"] = sorted({*slots[name]["possible_values"], *_default(intent, name)})
        if name in intent["optional_slots"]:
            properties[name]["default"] = intent["optional_slots"][name]
    return {
        "name": intent["name"],
        "description": intent["description"],
        "parameters": {"type": "object", "properties": properties, "required": list(intent["required_slots"])},
    }


def _default(intent: Mapping[str, Any], slot: str) -> tuple[str, ...]:
    """A default, for example `dontcare`, is allowed although it is no listed value."""
    return (intent["optional_slots"][slot],) if slot in intent["optional_slots"] else ()
