from __future__ import annotations

from typing import Any

import pytest

from grpo.environments.tools import describe, problem
from grpo.errors import ConfigError
from grpo.messages import Tool


def refund(shop: dict[str, Any], /, order: str, amount: int = 0, tags: list[str] | None = None) -> tuple[Any, Any]:
    """Pay back.

    More words that the model does not read.
    """
    return shop, None


def test_a_function_describes_itself():
    """Name, first line, types, and what is required; the state is no argument."""
    tool = describe(refund)
    assert (tool.name, tool.description) == ("refund", "Pay back.")
    assert list(tool.parameters["properties"]) == ["order", "amount", "tags"]
    assert tool.parameters["properties"]["amount"]["type"] == "integer"
    assert tool.parameters["required"] == ["order"]


def test_an_argument_without_an_annotation_is_refused():
    """The model must know what to write."""

    def close(state: dict[str, Any], ticket) -> None:  # type: ignore[no-untyped-def]
        """Close."""

    with pytest.raises(ConfigError, match="tool close: argument ticket"):
        describe(close)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"order": "1"}, None),
        ({"order": "1", "amount": 3, "tags": ["a"]}, None),
        ({}, "refund: 'order' is a required property"),
        ({"order": 1}, "refund: order: 1 is not of type 'string'"),
        ({"order": "1", "amount": "3"}, "refund: amount: '3' is not of type 'integer'"),
        ({"order": "1", "amount": True}, "refund: amount: True is not of type 'integer'"),
        ({"order": "1", "speed": 1}, "refund has no argument speed; it takes order, amount, tags"),
    ],
)
def test_arguments_are_held_against_the_schema(arguments: dict[str, Any], wrong: str | None):
    """What is wrong is said by name; True is no integer."""
    assert problem(describe(refund), arguments) == wrong


def test_an_argument_that_the_schema_does_not_name_is_refused():
    """Even where the schema itself would let it pass."""
    assert problem(Tool(name="f"), {"x": 1}) == "f has no argument x; it takes none"
