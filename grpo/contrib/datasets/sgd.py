"""Schema-Guided Dialogue: a user, and an assistant that calls services with published schemas.

    USER utterances        → user_responses
    SYSTEM utterances      → expected.responses, reply k to turn k
    service_call           → expected.calls. `turn` is the number of the user turn that it answers
    service_results        → world.recorded: the result of each call, empty for some
    schema.json            → tools: the intents of the dialogue's services
    train, dev, test       → split

The development part has services that the training part does not have, so the category is the kind of task (search or
transaction), and the topic names the services.

https://github.com/google-research-datasets/dstc8-schema-guided-dialogue, CC-BY-SA-4.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts, read_parts
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.records import SourceRecord, convert_records, difficulty_by_count, read_all_records


class _Slot(BaseModel):
    name: str
    description: str
    is_categorical: bool
    possible_values: tuple[str, ...]


class _Intent(BaseModel):
    name: str
    description: str
    is_transactional: bool
    required_slots: tuple[str, ...]
    optional_slots: dict[str, str]


class _Service(BaseModel):
    service_name: str
    slots: tuple[_Slot, ...]
    intents: tuple[_Intent, ...]


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


def read_sgd(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the `dialogues_*.json` of the parts (default `train` and `dev`), one record per dialogue.

    A part may also be one file, such as `test/dialogues_003.json`. `line` is the number in the file. Raises `DataError`
    if a part has no dialogues or schema, or is broken.
    """
    names = {name: (name,) for name in ("train", "dev", "test")}
    yield from read_parts(find_parts(folder, parts or ("train", "dev"), names), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    paths = part.files("dialogues_*.json")
    place = paths[0].parent
    services = {
        service.service_name: service for service in read_all_records(read_json(place / "schema.json"), _Service)
    }

    def fields(dialogue: _Dialogue, _: int) -> dict[str, Any]:
        unknown = [name for name in dialogue.services if name not in services]
        if unknown:
            raise ValueError(f"unknown service: {', '.join(unknown)}")
        return _scenario(dialogue, place.name, [services[name] for name in dialogue.services])

    for path in paths:
        yield from convert_records(read_json(path), _Dialogue, fields)


def _scenario(dialogue: _Dialogue, part: str, services: list[_Service]) -> dict[str, Any]:
    tools = [_tool(intent, service) for service in services for intent in service.intents]
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise ValueError(f"two tools of one name: {', '.join(dialogue.services)}")
    transactional = {intent.name for service in services for intent in service.intents if intent.is_transactional}
    calls, recorded, turn = [], [], -1
    for line in dialogue.turns:
        turn += line.speaker == "USER"
        for frame in line.frames:
            if frame.service_call is not None:
                call = {"name": frame.service_call.method, "arguments": frame.service_call.parameters}
                calls.append({**call, "turn": turn})
                recorded.append({**call, "result": list(frame.service_results)})
    return {
        "id": f"sgd-{part}-{dialogue.dialogue_id}",
        "topic": "+".join(dialogue.services),
        "domain": "tool_use",
        "user_responses": [line.utterance for line in dialogue.turns if line.speaker == "USER"],
        "tools": tools,
        "world": {"recorded": recorded},
        "expected": {
            "responses": [line.utterance for line in dialogue.turns if line.speaker == "SYSTEM"],
            "calls": calls,
        },
        "metadata": {
            "category": "transaction" if any(call["name"] in transactional for call in calls) else "search",
            "difficulty": difficulty_by_count(len(calls), easy=1, medium=2),
            "source": "sgd",
            "licence": "CC-BY-SA-4.0",
        },
    }


def _tool(intent: _Intent, service: _Service) -> dict[str, Any]:
    """Tool of an intent. A default, e.g. `dontcare`, is an allowed value even if it is not listed."""
    slots = {slot.name: slot for slot in service.slots}
    properties: dict[str, dict[str, Any]] = {}
    for name in (*intent.required_slots, *intent.optional_slots):
        defaults = [intent.optional_slots[name]] if name in intent.optional_slots else []
        properties[name] = {"type": "string", "description": slots[name].description}
        if slots[name].is_categorical:
            properties[name]["enum"] = sorted({*slots[name].possible_values, *defaults})
        if defaults:
            properties[name]["default"] = defaults[0]
    return {
        "name": intent.name,
        "description": intent.description,
        "parameters": {"type": "object", "properties": properties, "required": list(intent.required_slots)},
    }
