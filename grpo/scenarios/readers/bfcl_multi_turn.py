"""BFCL multi-turn: a user's requests in order, simulated services with a state, and the calls that are right.

    question        → user_responses
    initial_config  → world, by service; a service without a configuration starts empty
    ground_truth    → expected.calls; `turn` says which request a call answers
    function docs   → tools of the services involved, less the excluded ones

    "sort('final_report.pdf')"  →  {"name": "sort", "arguments": {"file_name": "final_report.pdf"}, "turn": 2}

The calls are Python in a string: they are parsed, not run, and arguments without a name get it from the docs.
The docs' types are Python's (`dict`, `float`, `tuple`); they become JSON Schema's. What the services do is code and is
not in the data.

https://github.com/ShishirPatil/gorilla, Apache-2.0
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.errors import DataError
from grpo.scenarios.readers.lines import read_lines
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import grade, reshape

_FILE = "BFCL_v4_multi_turn_base.json"
_DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
_MAIN = ("GorillaFileSystem", "TradingBot", "TravelAPI", "VehicleControlAPI")
"""Every task is about one of them; the other services come along."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class _Said(BaseModel):
    role: str
    content: str


class _Task(BaseModel):
    id: str
    question: tuple[tuple[_Said, ...], ...]
    initial_config: dict[str, Any]
    involved_classes: tuple[str, ...]
    excluded_function: tuple[str, ...] = ()


def read_bfcl_multi_turn(folder: Path) -> Iterator[Record]:
    """Read the tasks, one record each.

    Raises `DataError` where a file is missing or broken.
    """
    answers = {row["id"]: row["ground_truth"] for row in _rows(folder / "possible_answer" / _FILE)}
    docs = {name: _rows(folder / "multi_turn_func_doc" / f"{file}.json") for name, file in _DOCS.items()}

    def fields(task: _Task, _: int) -> dict[str, Any]:
        if task.id not in answers:
            raise ValueError(f"no ground truth: {task.id}")
        unknown = [name for name in task.involved_classes if name not in docs]
        if unknown:
            raise ValueError(f"unknown service: {', '.join(unknown)}")
        described = {doc["name"]: doc for name in task.involved_classes for doc in docs[name]}
        calls = [
            {**_parse(call, described), "turn": turn} for turn, texts in enumerate(answers[task.id]) for call in texts
        ]
        return {
            "id": f"bfcl-{task.id}",
            "topic": "+".join(sorted(task.involved_classes)),
            "domain": "tool_use",
            "user_responses": ["\n".join(said.content for said in turn) for turn in task.question],
            "tools": [_tool(doc) for name, doc in described.items() if name not in task.excluded_function],
            "world": {**{name: {} for name in task.involved_classes}, **task.initial_config},
            "expected": {"calls": calls},
            "metadata": {
                "category": next((name for name in _MAIN if name in task.involved_classes), "other"),
                "difficulty": grade(len(calls), easy=4, medium=6),
                "source": "bfcl",
                "licence": "Apache-2.0",
            },
        }

    yield from reshape(read_lines(folder / _FILE), _Task, fields)


def _rows(path: Path) -> list[dict[str, Any]]:
    """A companion file, which must be whole."""
    rows = []
    for record in read_lines(path):
        if record.data is None:
            raise DataError(f"{path}:{record.line}: {record.problem}; fetch the published file again")
        rows.append(record.data)
    return rows


def _parse(text: str, docs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`cd(folder='a')` → name and arguments; `ValueError` for anything but a call with literal arguments."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("no plain call")
        name = call.func.id
        if name not in docs:
            raise ValueError("no such tool")
        order = list(docs[name]["parameters"]["properties"])
        given = dict(zip(order, call.args, strict=False)) if len(call.args) <= len(order) else None
        if given is None:
            raise ValueError("more arguments than the tool has")
        given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
        return {"name": name, "arguments": {key: ast.literal_eval(value) for key, value in given.items()}}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"not a call: {text:.80} ({error})") from error


def _tool(doc: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": doc["name"], "description": doc["description"], "parameters": _schema(doc["parameters"])}


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with JSON's names of types, inside as well."""
    found = dict(schema)
    if "type" in found:
        found["type"] = _TYPES.get(found["type"], found["type"])
    if "properties" in found:
        found["properties"] = {name: _schema(inner) for name, inner in found["properties"].items()}
    if "items" in found:
        found["items"] = _schema(found["items"])
    return found
