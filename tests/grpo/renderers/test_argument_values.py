"""Arguments without quotes: types, unions, enums and definitions of the tool's schema."""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest

from grpo.messages import Tool
from grpo.renderers.argument_values import typed_value
from grpo.tools import argument_error, tool_from_function


class Size(enum.Enum):
    """Sizes, whose values look like numbers."""

    SMALL = "1"
    LARGE = "2"


class Level(enum.IntEnum):
    """Levels, which are numbers."""

    LOW = 1
    HIGH = 2


def _parameters(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '"abc"', '"abc"'),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
        ({"type": ["string", "null"]}, '["x"]', '["x"]'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"abc"', '"abc"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "boolean"]}, "true", True),
        ({"type": ["string", "boolean"]}, "1", "1"),
        ({"type": ["string", "object"]}, '{"a": 1}', {"a": 1}),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, '"5"', "5"),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "object"}, "{'a': None}", {"a": None}),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["a", "b"]}, '"a"', "a"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"const": "7"}, "7", "7"),
        ({"type": "string", "enum": ["1", "2"]}, "3", "3"),
        ({}, "5", 5),
        (None, "abc", "abc"),
        ({"type": "strange"}, "5", 5),
        ({"type": None, "enum": "ab", "anyOf": 3}, "5", 5),
        ({"$ref": "#/$defs/Missing"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", 5),
    ],
)
def test_a_value_has_a_type_that_its_schema_accepts(schema: Any, raw: str, value: Any):
    """A text stays as it is wherever a text is accepted, and a stranger's schema restricts nothing."""
    parameters = {**_parameters(a=schema), "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    read = typed_value(raw, "a", parameters)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("parameters", [{}, {"properties": None, "$defs": None}, {"properties": []}])
def test_without_a_schema_of_the_argument_a_value_is_json_python_or_text(parameters: Any):
    assert [typed_value(raw, "a", parameters) for raw in ("5", "(1, 2)", "b c")] == [5, [1, 2], "b c"]


def test_calls_of_a_typed_function_are_accepted():
    """Enums, which pydantic puts into definitions, optional texts, and literals."""

    def send(size: Size, level: Level, body: str | None = None, mode: Literal["1", "fast"] = "1") -> str:
        """Send it."""
        return f"{size} {level} {body} {mode}"

    tool: Tool = tool_from_function("send", send)
    raw = {"size": "1", "level": "2", "body": '{"a": 1}', "mode": "1"}
    arguments = {name: typed_value(text, name, tool.parameters) for name, text in raw.items()}
    assert arguments == {"size": "1", "level": 2, "body": '{"a": 1}', "mode": "1"}
    assert argument_error(tool, arguments) is None
