"""Taskmaster: coffee orders of Taskmaster-4 as scenarios, and labelled steps of an agent from Taskmaster-3 and 4.

    user's texts                     → user_responses
    assistant's texts                → expected.responses, reply k to turn k
    api_call with its request        → expected.calls. A call without a request has no arguments
    api_response with its response   → world.recorded: the result of each call
    all calls of the files           → tools
    reward_NN.json                   → labelled replies: 1 good, 0 bad

Requests, responses, contexts and generations are JSON in strings. If that JSON is broken, the record is quarantined.
Labelled steps after the same context are one group. The crowd workers' instructions are left out, because they are
forms and not text of a user.

https://github.com/google-research-datasets/Taskmaster, CC-BY-4.0
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json

from grpo.contrib.datasets.parts import DatasetPart, find_parts
from grpo.messages import Message, ToolCall
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.readers.messages.speaker_turns import user_turns_and_replies
from grpo.scenarios.records import SourceRecord, convert_records, difficulty_by_count
from grpo.scenarios.tool_schemas import infer_tool_schemas

_DIALOGUES = {"tm4": ("tm4/data", "TM-4-2024/data", "tm4")}
_REWARDS = {
    "tm3": ("tm3/reward", "TM-3-2020/reward", "tm3"),
    "tm4": ("tm4/reward", "TM-4-2024/reward", "tm4"),
}


class _Annotation(BaseModel):
    name: Literal["api_call", "request", "api_response", "response"]
    value: str
    context: str


class _Utterance(BaseModel):
    speaker: Literal["user", "assistant"]
    text: str
    annotations: tuple[_Annotation, ...]


class _Dialogue(BaseModel):
    conversation_id: str
    scenario: str
    utterances: tuple[_Utterance, ...]


class _Step(BaseModel):
    conversation_id: str
    context: str
    generation: str
    reward: Literal[0, 1]


class _ContextStep(BaseModel):
    role: Literal["user", "agent", "api"]
    text: str | None = None
    api: dict[str, dict[str, Any]] | None = None
    response: dict[str, Any] | None = None


_CONTEXT = TypeAdapter(tuple[_ContextStep, ...])


def read_taskmaster(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the `data_*.json` of the parts (default `tm4`), one record per dialogue.

    `line` is the dialogue's number in the file. A part may also be one file. Raises `DataError` if a file is missing or
    broken.
    """
    paths = [path for part in find_parts(folder, parts or ("tm4",), _DIALOGUES) for path in part.files("data_*.json")]
    records = [record for path in paths for record in convert_records(read_json(path), _Dialogue, _scenario)]
    tools = infer_tool_schemas(
        (call["name"], call["arguments"])
        for record in records
        if record.data is not None
        for call in record.data["expected"]["calls"]
    )
    for record in records:
        yield record if record.data is None else replace(record, data={**record.data, "tools": tools})


def read_taskmaster_labels(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the `reward_*.json` of the parts (default `tm3` and `tm4`), one record per labelled step of the agent."""
    for part in find_parts(folder, parts or tuple(_REWARDS), _REWARDS):
        for path in part.files("reward_*.json"):
            for record in convert_records(read_json(path), _Step, _label):
                if record.data is not None:
                    record.data["category"] = _set(part)
                yield record


def _set(part: DatasetPart) -> str:
    """Taskmaster version of a part, from its own name or from the folders of its file."""
    return next((name for name, places in _REWARDS.items() if part.name.startswith((name, *places))), part.stem)


def _scenario(dialogue: _Dialogue, _: int) -> dict[str, Any]:
    calls, recorded, turn = [], [], -1
    for utterance in dialogue.utterances:
        turn += utterance.speaker == "user"
        for call, result in _calls(utterance.annotations):
            calls.append({**call, "turn": turn})
            recorded.append({**call, "result": result})
    user, assistant = user_turns_and_replies([(line.speaker, line.text) for line in dialogue.utterances], "user")
    return {
        "id": f"taskmaster-{dialogue.conversation_id}",
        "topic": "coffee",
        "domain": "sales",
        "user_responses": user,
        "world": {"recorded": recorded},
        "expected": {"responses": assistant, "calls": calls},
        "metadata": {
            "category": dialogue.scenario.strip(),
            "difficulty": difficulty_by_count(len(calls), easy=4, medium=5),
            "source": "taskmaster-4",
            "licence": "CC-BY-4.0",
        },
    }


def _calls(annotations: tuple[_Annotation, ...]) -> list[tuple[dict[str, Any], Any]]:
    """Calls with their results. `api_call_3` and `api_response_3` belong together."""
    steps: dict[str, dict[str, str]] = {}
    for item in annotations:
        if item.name == "api_call" and not item.value.strip():
            raise ValueError(f"the call of {item.context} has no name")
        steps.setdefault(item.context.rpartition("_")[2], {})[item.name] = item.value
    return [
        (
            {"name": step["api_call"], "arguments": _object("request", step.get("request", "{}"))},
            _object("response", step.get("response", "{}")),
        )
        for step in steps.values()
        if "api_call" in step
    ]


def _label(labelled: _Step, _: int) -> dict[str, Any]:
    try:
        context = from_json(labelled.context)
    except ValueError as error:
        raise ValueError(f"context is not JSON: {error}") from error
    prompt = [_message(step) for step in _CONTEXT.validate_python(context)]
    if not prompt:
        raise ValueError("context is empty: a step is labelled after the steps before it")
    return {
        "id": f"taskmaster-{labelled.conversation_id}",
        "group": f"taskmaster-{hashlib.sha256(labelled.context.encode()).hexdigest()[:16]}",
        "prompt": prompt,
        "reply": _message(_ContextStep.model_validate(_object("generation", labelled.generation))),
        "label": "good" if labelled.reward else "bad",
        "score": labelled.reward,
        "source": "taskmaster",
        "licence": "CC-BY-4.0",
    }


def _message(step: _ContextStep) -> Message:
    """`{"role": "agent", "api": {"find_movies": {…}}}` is a call, `{"role": "api", "response": {…}}` its result."""
    if step.role != "api" and step.text is not None:
        return Message(role="user" if step.role == "user" else "assistant", content=step.text)
    if step.role == "agent" and step.api is not None:
        calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in step.api.items())
        return Message(role="assistant", content="", tool_calls=calls)
    if step.role == "api" and step.response is not None:
        return Message(role="tool", content=json.dumps(step.response))
    raise ValueError(f"unknown step: role {step.role} with {', '.join(sorted(step.model_fields_set - {'role'}))}")


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = from_json(text)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}: {text:.80}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object: {text:.80}")
    return value
