"""Taskmaster: Taskmaster-4's coffee orders as scenarios; of Taskmaster-3 and 4 what people thought of an agent's step.

    user's texts                     → user_responses
    assistant's texts                → expected.responses, reply k to turn k
    api_call with its request        → expected.calls; a call without a request has no arguments
    api_response with its response   → world.recorded: what each call returned
    all calls of the files           → tools
    reward_NN.json                   → labelled replies: 1 good, 0 bad

Requests, responses, contexts and generations are JSON in strings, some of it broken: such a record is refused. The
crowd workers' instructions are forms to fill in, no words of a user, and are left out.

https://github.com/google-research-datasets/Taskmaster, CC-BY-4.0
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json

from grpo.errors import DataError
from grpo.messages import Message, ToolCall
from grpo.scenarios.readers.dialogue import from_user_on
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import grade, reshape
from grpo.scenarios.readers.tools import describe_tools

_SETS = ("tm3", "tm4")


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


def read_taskmaster(folder: Path) -> Iterator[Record]:
    """Read `tm4/data_*.json`, one record a dialogue, `line` being its number in the file.

    Raises `DataError` where there is no such file, or one is broken.
    """
    records = [
        record for path in _paths(folder / "tm4", "data") for record in reshape(read_json(path), _Dialogue, _scenario)
    ]
    tools = describe_tools(
        (call["name"], call["arguments"])
        for record in records
        if record.data is not None
        for call in record.data["expected"]["calls"]
    )
    for record in records:
        yield record if record.data is None else replace(record, data={**record.data, "tools": tools})


def read_taskmaster_labels(folder: Path) -> Iterator[Record]:
    """Read `tm3/reward_*.json` and `tm4/reward_*.json`, one record a judged step of the agent."""
    for name in _SETS:
        for path in _paths(folder / name, "reward"):
            for record in reshape(read_json(path), _Step, _label):
                if record.data is not None:
                    record.data["category"] = name
                yield record


def _paths(folder: Path, kind: str) -> list[Path]:
    paths = sorted(folder.glob(f"{kind}_*.json"))
    if not paths:
        raise DataError(f"no {kind}_*.json in {folder}; fetch the published files again")
    return paths


def _scenario(found: _Dialogue, _: int) -> dict[str, Any]:
    calls, recorded, turn = [], [], -1
    for said in found.utterances:
        turn += said.speaker == "user"
        for call, result in _calls(said.annotations):
            calls.append({**call, "turn": turn})
            recorded.append({**call, "result": result})
    user, assistant = from_user_on([(said.speaker, said.text) for said in found.utterances], "user")
    return {
        "id": f"taskmaster-{found.conversation_id}",
        "topic": "coffee",
        "domain": "sales",
        "user_responses": user,
        "world": {"recorded": recorded},
        "expected": {"responses": assistant, "calls": calls},
        "metadata": {
            "category": found.scenario.strip(),
            "difficulty": grade(len(calls), easy=2, medium=4),
            "source": "taskmaster-4",
            "licence": "CC-BY-4.0",
        },
    }


def _calls(annotations: tuple[_Annotation, ...]) -> list[tuple[dict[str, Any], Any]]:
    """Calls with what they returned; `api_call_3` and `api_response_3` belong together."""
    steps: dict[str, dict[str, str]] = {}
    for item in annotations:
        steps.setdefault(item.context.rpartition("_")[2], {})[item.name] = item.value
    return [
        (
            {"name": step["api_call"], "arguments": _object("request", step.get("request", "{}"))},
            _object("response", step.get("response", "{}")),
        )
        for step in steps.values()
        if "api_call" in step
    ]


def _label(found: _Step, _: int) -> dict[str, Any]:
    try:
        context = from_json(found.context)
    except ValueError as error:
        raise ValueError(f"context is no JSON: {error}") from error
    return {
        "id": f"taskmaster-{found.conversation_id}",
        "group": f"taskmaster-{found.conversation_id}",
        "prompt": [_message(step) for step in context],
        "reply": _message(_object("generation", found.generation)),
        "label": "good" if found.reward else "bad",
        "score": found.reward,
        "source": "taskmaster",
        "licence": "CC-BY-4.0",
    }


def _message(step: Mapping[str, Any]) -> Message:
    """`{"role": "agent", "api": {"find_movies": {…}}}` is a call, `{"role": "api", "response": {…}}` its result."""
    role = step.get("role")
    if role in ("user", "agent") and "text" in step:
        return Message(role="user" if role == "user" else "assistant", content=step["text"])
    if role == "agent" and "api" in step:
        calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in step["api"].items())
        return Message(role="assistant", content="", tool_calls=calls)
    if role == "api" and "response" in step:
        return Message(role="tool", content=json.dumps(step["response"]))
    raise ValueError(f"unknown step: role {role!r} with {', '.join(sorted(set(step) - {'role'}))}")


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = from_json(text)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}: {text:.80}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object: {text:.80}")
    return value
