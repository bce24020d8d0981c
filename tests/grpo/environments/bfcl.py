"""BFCL's multi-turn tasks as scenarios, read from the published files."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from grpo.scenarios.scenario import Scenario

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "bfcl_multi_turn"
DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def bfcl_scenarios() -> list[tuple[Scenario, set[str]]]:
    """All 200 tasks, each with the classes that it involves."""
    tools = {name: [_tool(json.loads(line)) for line in _lines(f"multi_turn_func_doc/{file}.json")]
             for name, file in DOCUMENTS.items()}  # fmt: skip
    answers = {task["id"]: task["ground_truth"] for task in map(json.loads, _lines("possible_answer/" + _TASKS))}
    return [
        (_scenario(task, answers[task["id"]], tools), set(task["involved_classes"]))
        for task in map(json.loads, _lines(_TASKS))
    ]


_TASKS = "BFCL_v4_multi_turn_base.json"


def _lines(path: str) -> list[str]:
    return (FOLDER / path).read_text(encoding="utf-8").splitlines()


def _scenario(task: dict[str, Any], answers: list[list[str]], tools: dict[str, list[dict[str, Any]]]) -> Scenario:
    offered = [tool for name in task["involved_classes"] for tool in tools[name]]
    signatures = {tool["name"]: list(tool["parameters"]["properties"]) for tool in offered}
    calls = [read_call(text, signatures) for turn in answers for text in turn]
    return Scenario.model_validate(
        {
            "id": f"bfcl-{task['id']}",
            "domain": "tool_use",
            "user_responses": [turn[0]["content"] for turn in task["question"]],
            "tools": offered,
            "world": task["initial_config"],
            "expected": {"calls": calls},
        }
    )


def read_call(text: str, signatures: dict[str, list[str]]) -> dict[str, Any]:
    """`sort('a')` → {"name": "sort", "arguments": {"file_name": "a"}}"""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    positional = zip(signatures[call.func.id], call.args, strict=False)
    named = [(keyword.arg, keyword.value) for keyword in call.keywords]
    return {
        "name": call.func.id,
        "arguments": {str(name): ast.literal_eval(value) for name, value in (*positional, *named)},
    }


def _tool(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": document["name"],
        "description": document["description"],
        "parameters": _schema(document["parameters"]),
    }


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in ("description", "required", "default") if key in schema}
    kind = _TYPES.get(schema["type"], schema["type"])
    if kind:
        kept["type"] = kind
    if "properties" in schema:
        kept["properties"] = {name: _schema(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        kept["items"] = _schema(schema["items"])
    return kept
