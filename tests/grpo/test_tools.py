from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from grpo.errors import ConfigError
from grpo.messages import Tool
from grpo.tools import argument_error, equal_values, tool_from_function, typed_arguments


def refund(order: str, amount: int = 0, tags: list[str] | None = None) -> None:
    """Pay back.

    More words that the model does not read.
    """


def test_a_function_describes_itself():
    """First line, types, and what is required."""
    tool = tool_from_function("pay_back", refund)
    assert (tool.name, tool.description) == ("pay_back", "Pay back.")
    assert list(tool.parameters["properties"]) == ["order", "amount", "tags"]
    assert tool.parameters["properties"]["amount"]["type"] == "integer"
    assert tool.parameters["required"] == ["order"]


def test_what_is_given_stands_for_what_could_be_read():
    """Words and schema."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert tool_from_function("f", refund, description="Do.", parameters=schema) == Tool(
        name="f", description="Do.", parameters=schema
    )


@pytest.mark.parametrize(
    ("function", "parameters", "problem"),
    [
        (refund, {"type": "thing"}, "tool f: parameters are not a JSON schema"),
        (lambda *rest: rest, None, "tool f takes arguments without names"),
    ],
)
def test_a_function_without_a_schema_is_refused(function: Any, parameters: dict[str, Any] | None, problem: str):
    """By the name of the tool."""
    with pytest.raises(ConfigError, match=problem):
        tool_from_function("f", function, parameters=parameters)


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
def test_arguments_are_validated_against_the_schema(arguments: dict[str, Any], wrong: str | None):
    """The violation names the argument; True is not an integer."""
    assert argument_error(tool_from_function("refund", refund), arguments) == wrong


@pytest.mark.parametrize(
    ("parameters", "wrong"),
    [
        ({}, "f has no argument x; it takes none"),
        ({"additionalProperties": False}, "f has no argument x; it takes none"),
        ({"additionalProperties": True}, None),
        ({"additionalProperties": {"type": "string"}}, "f: x: 1 is not of type 'string'"),
    ],
)
def test_arguments_that_the_schema_does_not_name_need_its_leave(parameters: dict[str, Any], wrong: str | None):
    """A schema without `additionalProperties` refuses them."""
    assert argument_error(Tool(name="f", parameters=parameters), {"x": 1}) == wrong


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (1, 1.0, True),
        ({"a": 1, "b": [2]}, {"b": (2.0,), "a": 1}, True),
        (1, "1", False),
        (1, True, False),
        (None, False, False),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ("2024-01-01", "2024-01-01", True),
        ("2024-01-01", date(2024, 1, 1), True),
        ("2024-01-01", 2024, False),
    ],
)
def test_arguments_are_equal_by_their_values(first: Any, second: Any, equal: bool):
    """As in JSON: one number in two spellings, keys in any order; a text is not a number, and 1 is not true."""
    assert equal_values(first, second) is equal
    assert equal_values(second, first) is equal


class Item(BaseModel):
    name: str
    count: int = Field(default=1, description="how many")


@dataclass
class Place:
    street: str
    city: str = "Oslo"


class Speed(Enum):
    FAST = "fast"


def order(  # noqa: D417
    items: list[Item],
    place: Place,
    when: date,
    speed: Speed = Speed.FAST,
    note: Annotated[str, "a word to the driver"] = "",
    mode: Literal["a", "b"] = "a",
    most: int | None = None,
) -> None:
    """Order.

    Args:
        when: The day of the
            delivery.
        note: Not this, because the annotation has a text.
    """


def test_arguments_are_of_the_types_that_the_function_names():
    """Models, dataclasses, dates and enums, from the values of JSON; the others stay as they are."""
    given = {
        "items": [{"name": "lamp"}], "place": {"street": "Mill"}, "when": "2026-11-20", "speed": "fast", "most": None,
    }  # fmt: skip
    assert typed_arguments(order, given) == {
        "items": [Item(name="lamp", count=1)],
        "place": Place(street="Mill", city="Oslo"),
        "when": date(2026, 11, 20),
        "speed": Speed.FAST,
        "most": None,
    }


def test_a_value_that_its_type_refuses_is_named():
    """With its place."""
    with pytest.raises(ValueError, match=r"^when: Input should be a valid date"):
        typed_arguments(order, {"when": "soon"})


def test_parameters_are_described_by_their_annotation_or_by_the_docstring():
    """The annotation comes first."""
    properties = tool_from_function("order", order).parameters["properties"]
    assert properties["note"]["description"] == "a word to the driver"
    assert properties["when"]["description"] == "The day of the delivery."
    assert "description" not in properties["mode"]


class Database:
    """A class that pydantic does not know."""


def test_a_parameter_of_a_type_without_a_schema_gets_its_value_as_it_is() -> None:
    """E.g. an object that is its default, and that no call gives."""

    def look_up(order: str, database: Database = Database()) -> str:  # noqa: B008
        return order

    assert typed_arguments(look_up, {"order": "7"}) == {"order": "7"}


def test_an_iterable_can_be_read_twice() -> None:
    def total(words: Iterable[str], days: Iterable[date]) -> int:
        return len(list(words)) + len(list(days))

    typed = typed_arguments(total, {"words": ["a", "b"], "days": ["2026-11-20"]})
    assert typed == {"words": ["a", "b"], "days": [date(2026, 11, 20)]}


def test_the_types_of_a_method_keep_no_object() -> None:
    class Shop:
        def order(self, when: date) -> str:
            return str(when)

    shop = Shop()
    assert typed_arguments(shop.order, {"when": "2026-11-20"}) == {"when": date(2026, 11, 20)}
    place = weakref.ref(shop)
    del shop
    gc.collect()
    assert place() is None


def test_a_schema_that_refers_to_an_address_is_not_fetched():
    """The tools of a stranger's file decide nothing about the network."""
    asked: list[str] = []

    class Noted(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Noted) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/schema.json"
        tool = Tool(name="look_up", parameters={"properties": {"order": {"$ref": address}}})
        assert argument_error(tool, {"order": "7"}) == f"look_up: its schema refers to {address}, which is not in it"
        server.shutdown()
    assert asked == []
    local = Tool(name="t", parameters={"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}})
    assert argument_error(local, {"a": "x"}) is None
    assert argument_error(local, {"a": 1}) == "t: a: 1 is not of type 'string'"
