"""Tool schemas from calls."""

from __future__ import annotations

from typing import Any

from grpo.scenarios.tool_schemas import infer_tool_schemas


def test_arguments_types_and_requirements_follow_from_the_calls() -> None:
    """Arguments of every call are required; an argument of two types has both; a list has the type of its items."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("cancel", {"order": "7", "items": ["a"]}),
        ("cancel", {"order": 8, "items": [], "notify": True}),
        ("ask", {}),
    ]
    ask, cancel = infer_tool_schemas(calls)
    assert ask == {
        "name": "ask",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }
    assert cancel["parameters"] == {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"type": "string"}},
            "notify": {"type": "boolean"},
            "order": {"type": ["integer", "string"]},
        },
        "required": ["items", "order"],
    }


def test_a_call_without_a_name_makes_no_tool() -> None:
    """Which would have no name either, and cost every scenario that has the tools of all records."""
    assert [tool["name"] for tool in infer_tool_schemas([("", {"id": 7}), (" ", {}), ("ask", {})])] == ["ask"]
