"""Errors in data: excerpts of any value, and sources that raise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grpo.data_errors import excerpt, read_guarded
from grpo.errors import BudgetError, DataError
from grpo.scenarios.records import SourceRecord


class Mute:
    """An object whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Hollow(dict[str, Any]):
    """A dict that raises when it is iterated over."""

    def items(self) -> Any:
        raise OSError("gone")

    def __iter__(self) -> Any:
        raise OSError("gone")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {"id": "a"}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"id": "a", "goal": "ä"}, '{"id": "a", "goal": "ä"}'),
        ("as it is", "as it is"),
        ({"world": {(1, 2): 3}}, '{"world": { … not JSON: TypeError: keys must be str'),
        ({"n": 10**5000}, '{"n":  … not JSON: ValueError: Exceeds the limit'),
        ({"x": Mute()}, '{"x": "<Mute>"}'),
        ({"x": object()}, '{"x": "<object object>"}'),
        ("half \ud800", "half ?"),
        (cycle(), '{"id": "a", "self":  … not JSON: ValueError: Circular reference'),
        (nested(100_000), "[" * 500),
        ({"x": "y" * 10**7}, '{"x": "' + "y" * 493),
        (float("nan"), "NaN"),
    ],
    ids=["json", "text", "keys", "digits", "mute", "address", "surrogate", "cycle", "depth", "length", "nan"],
)
def test_an_excerpt_can_be_made_of_any_value(value: Any, text: str) -> None:
    """The excerpt is short, can be encoded, and is the same in every process."""
    made = excerpt(value)
    assert made.startswith(text)
    made.encode()
    assert len(made) < 1500


def test_an_excerpt_of_a_dict_that_raises_has_the_exception() -> None:
    """The excerpt ends with the exception."""
    assert excerpt(Hollow(a=1)) == "{ … not JSON: OSError: gone"


def breaking(error: Exception) -> Iterator[SourceRecord]:
    """One record, then this error."""
    yield SourceRecord(source="s", line=1, data={})
    raise error


@pytest.mark.parametrize("error", [RecursionError("deep"), KeyError("name"), OverflowError("far"), MemoryError()])
def test_a_source_that_breaks_is_an_error_with_its_place(error: Exception) -> None:
    """The records before it are read."""
    records = read_guarded(lambda: breaking(error), "logs/a.bin (odd)")
    next(records)
    with pytest.raises(DataError, match=rf"logs/a\.bin \(odd\) cannot be read after record 1: {type(error).__name__}"):
        next(records)


@pytest.mark.parametrize("error", [ConnectionError("away"), TimeoutError("late"), BudgetError("too many")])
def test_transient_errors_and_errors_of_the_project_are_raised_unchanged(error: Exception) -> None:
    """A stage is retried after a dropped connection; a `GRPOError` is not wrapped in another one."""
    with pytest.raises(type(error), match=str(error)):
        list(read_guarded(lambda: breaking(error), "place"))


def test_a_reader_that_breaks_before_its_first_record_is_an_error_with_its_place() -> None:
    """The place is the beginning of the source."""

    def read() -> Iterator[SourceRecord]:
        raise AttributeError("'list' object has no attribute 'get'")

    with pytest.raises(DataError, match="source place cannot be read at its beginning: AttributeError"):
        list(read_guarded(read, "place"))
