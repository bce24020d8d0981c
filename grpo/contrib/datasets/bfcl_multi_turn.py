"""BFCL multi-turn: a user's requests in order, stateful services, and the expected calls.

    question        → user_responses
    initial_config  → world, by service. A service without a configuration starts empty
    ground_truth    → expected.calls. `turn` is the number of the request that a call answers
    function docs   → tools of the services involved, without the excluded tools
    missed_function → `from_turn` of these tools: they come in a turn that is empty in the data. As in the benchmark's
                      own harness, its text announces more tools

    "sort('final_report.pdf')"  →  {"name": "sort", "arguments": {"file_name": "final_report.pdf"}, "turn": 2}

The calls are Python in a string. They are parsed, not run, and arguments without a name get their name from the docs.
The docs use Python's types (`dict`, `float`, `tuple`), which become types of JSON Schema. The code of the services is
not in the data. Two parts in one table have near duplicates, because all parts share their requests.

https://github.com/ShishirPatil/gorilla, Apache-2.0
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts
from grpo.scenarios.readers.files.json_file import read_jsonl
from grpo.scenarios.records import SourceRecord, convert_records, difficulty_by_count, read_all_records

_FOLDER = "berkeley-function-call-leaderboard/bfcl_eval/data"
_PARTS = {
    name: (f"BFCL_v4_multi_turn_{name}.json", f"{_FOLDER}/BFCL_v4_multi_turn_{name}.json")
    for name in ("base", "miss_func", "miss_param", "long_context")
}
_MORE_TOOLS = "There are more functions to choose from now. Can you do it with them?"
"""Text of an empty user turn that adds a function."""
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
"""Services that give a task its category. Every task has one of them."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class _Message(BaseModel):
    role: str
    content: str


class _Task(BaseModel):
    id: str
    question: tuple[tuple[_Message, ...], ...]
    initial_config: dict[str, Any]
    involved_classes: tuple[str, ...]
    excluded_function: tuple[str, ...] = ()
    missed_function: dict[int, tuple[str, ...]] = {}

    @property
    def requests(self) -> list[str]:
        """The user's turns. An empty turn that adds functions gets the text `_MORE_TOOLS`."""
        turns = ["\n".join(message.content for message in turn) for turn in self.question]
        return [_MORE_TOOLS if not text and turn in self.missed_function else text for turn, text in enumerate(turns)]

    @property
    def late(self) -> dict[str, int]:
        """Turn from which a function is available, by its name."""
        return {name: turn for turn, names in self.missed_function.items() for name in names}


class _Answer(BaseModel):
    id: str
    ground_truth: tuple[tuple[str, ...], ...]


class _Doc(BaseModel):
    name: str
    description: str
    parameters: dict[str, Any]


def read_bfcl_multi_turn(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the tasks of the parts (default `base`), one record each.

    Raises `DataError` if a file is missing or broken.
    """
    for part in find_parts(folder, parts or ("base",), _PARTS):
        yield from _read(part)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    place = part.path.parent
    truth = read_all_records(read_jsonl(place / "possible_answer" / part.path.name), _Answer)
    answers = {answer.id: answer.ground_truth for answer in truth}
    docs = {
        name: read_all_records(read_jsonl(place / "multi_turn_func_doc" / f"{file}.json"), _Doc)
        for name, file in _DOCS.items()
    }

    def fields(task: _Task, _: int) -> dict[str, Any]:
        if task.id not in answers:
            raise ValueError(f"no ground truth: {task.id}")
        unknown = [name for name in task.involved_classes if name not in docs]
        if unknown:
            raise ValueError(f"unknown service: {', '.join(unknown)}")
        described = {doc.name: doc for name in task.involved_classes for doc in docs[name]}
        unknown = [name for name in task.late if name not in described]
        if unknown:
            raise ValueError(f"unknown missed function: {', '.join(unknown)}")
        calls = [
            {**_parse(call, described), "turn": turn} for turn, texts in enumerate(answers[task.id]) for call in texts
        ]
        return {
            "id": f"bfcl-{task.id}",
            "topic": "+".join(sorted(task.involved_classes)),
            "domain": "tool_use",
            "user_responses": task.requests,
            "tools": [
                _tool(doc, task.late.get(name, 0))
                for name, doc in described.items()
                if name not in task.excluded_function
            ],
            "world": {**{name: {} for name in task.involved_classes}, **task.initial_config},
            # if the published answer has no call, the world must stay unchanged
            "expected": {"calls": calls} if calls else {"reward_basis": ["DB"]},
            "metadata": {
                "category": next((name for name in _MAIN if name in task.involved_classes), "other"),
                "difficulty": difficulty_by_count(len(calls), easy=4, medium=6),
                "source": "bfcl",
                "licence": "Apache-2.0",
            },
        }

    return convert_records(read_jsonl(part.path), _Task, fields)


def _parse(text: str, docs: Mapping[str, _Doc]) -> dict[str, Any]:
    """`cd(folder='a')` → name and arguments. Raises `ValueError` if it is not a call with literal arguments."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("no plain call")
        name = call.func.id
        if name not in docs:
            raise ValueError("no such tool")
        order = list(docs[name].parameters["properties"])
        given: dict[str | None, ast.expr] = dict(zip(order, call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in call.keywords}
        if len(given) < len(call.args) + len(call.keywords) or not given.keys() <= set(order):
            raise ValueError("arguments that the tool does not have")
        return {"name": name, "arguments": {key: ast.literal_eval(value) for key, value in given.items()}}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"not a call: {text:.80} ({error})") from error


def _tool(doc: _Doc, turn: int) -> dict[str, Any]:
    tool = {"name": doc.name, "description": doc.description, "parameters": _schema(doc.parameters)}
    return {**tool, "from_turn": turn} if turn else tool


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of a schema with Python's type names, also in nested schemas."""
    converted = dict(schema)
    if "type" in converted:
        converted["type"] = _TYPES.get(converted["type"], converted["type"])
    if "properties" in converted:
        converted["properties"] = {name: _schema(inner) for name, inner in converted["properties"].items()}
    if "items" in converted:
        converted["items"] = _schema(converted["items"])
    return converted
