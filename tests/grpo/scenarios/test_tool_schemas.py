"""Tool schemas from calls."""

from __future__ import annotations

from typing import Any

import pytest

from grpo.scenarios.tool_schemas import declared_parameters, infer_tool_schemas


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


TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "dict": {"type": "object"},
    "string": {"type": "string"},
    "List[int]": {"type": "array", "items": {"type": "integer"}},
    "List[List[float]]": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "Dict[str, int]": {"type": "object"},
    "Tuple[int, str]": {"type": "array"},
    "Optional[str]": {"type": "string"},
    "Union[int, float]": {"type": ["integer", "number"]},
    "List[Union[int, str]]": {"type": "array", "items": {"type": ["integer", "string"]}},
    "int | None": {"type": ["integer", "null"]},
    "Callable[[float], float]": {},
    "np.ndarray": {},
    "a page": {},
    "": {},
}


@pytest.mark.parametrize(("word", "schema"), TYPES.items(), ids=TYPES)
def test_a_type_in_pythons_words_is_one_of_json(word: str, schema: dict[str, Any]):
    """A word that is not known allows any value. The description stays."""
    declared = declared_parameters({"x": {"description": "An x.", "type": word}})
    required = [] if "Optional" in word else ["x"]
    assert declared == {
        "type": "object", "properties": {"x": {"description": "An x.", **schema}}, "required": required
    }  # fmt: skip


def test_a_parameter_with_a_default_or_called_optional_is_not_required():
    """One of four is required. One of them is named `type`."""
    declared = declared_parameters(
        {
            "type": {"type": "str"},
            "most": {"type": "int, optional"},
            "page": {"type": "int", "default": 1},
            "days": {"type": "List[int], optional"},
        }
    )
    assert declared["required"] == ["type"]
    assert declared["properties"]["days"] == {"type": "array", "items": {"type": "integer"}}
    assert declared["properties"]["page"] == {"default": 1, "type": "integer"}


def test_a_schema_in_pythons_words_has_jsons():
    """As BFCL and When2Call write it, with the words inside properties and items."""
    schema = {"type": "dict", "properties": {"a": {"type": "list", "items": {"type": "float"}}}, "required": ["a"]}
    assert declared_parameters(schema) == {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "number"}}},
        "required": ["a"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"type": "string", "default": {"type": "str"}}}},
        {"properties": {"type": {"type": "string"}}},
        {"a": 1},
    ],
)
def test_a_schema_of_json_stays_as_it_is(schema: dict[str, Any]):
    """Only parameters by name are rewritten."""
    assert declared_parameters(schema) == schema
