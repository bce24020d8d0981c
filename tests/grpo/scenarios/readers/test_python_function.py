"""Functions of the user as sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import PythonSource
from grpo.errors import ConfigError, DataError
from grpo.scenarios.readers.python_function import read_python
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

MODULE = """
def endless():
    number = 0
    while True:
        yield {"id": str(number)}
        number += 1

def mixed():
    yield {"id": "a"}
    yield ["b"]

def breaking():
    yield {"id": "a"}
    raise RecursionError("deep")

def away():
    yield {"id": "a"}
    raise ConnectionError("the desk is away")

def nothing():
    return 7

def numbered(first: int, last: int = 2):
    for number in range(first, last + 1):
        yield {"id": str(number)}

constant = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported."""
    (tmp_path / "drawn_scenarios.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "drawn_scenarios"


def test_a_generator_is_read_lazily(module: str) -> None:
    """The first records of an endless one are read."""
    records = read_python(f"{module}:endless", {})
    assert [next(records).data for _ in range(2)] == [{"id": "0"}, {"id": "1"}]


def test_an_item_that_is_not_a_dict_is_a_problem(module: str) -> None:
    """The problem has the number of the item."""
    _, second = read_python(f"{module}:mixed", {})
    assert (second.line, second.problem, second.source) == (2, "not a dict: list", f"{module}:mixed")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "module no_such_module cannot be imported"),
        ("drawn_scenarios:absent", "module drawn_scenarios has no absent"),
        ("drawn_scenarios:constant", "drawn_scenarios:constant is int. Name a function"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_missing_function_is_an_error(function: str, message: str) -> None:
    """The message distinguishes a missing module from a missing function."""
    with pytest.raises(ConfigError, match=message):
        list(read_python(function, {}))


def records(function: str, **options: Any) -> list[SourceRecord]:
    """Records that ingestion reads."""
    return list(read_records(PythonSource(kind="python", object=function, options=options)))


def test_options_are_arguments_of_the_function(module: str) -> None:
    """Numbers 2 to 4."""
    assert [record.data for record in records(f"{module}:numbered", first=2, last=4)] == [
        {"id": "2"},
        {"id": "3"},
        {"id": "4"},
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 1}, "has no option 'start'. It takes first, last"),
        ({"first": "x"}, "option first: Input should be a valid integer"),
        ({}, "option first: Field required"),
    ],
)
def test_options_that_the_signature_does_not_take_are_refused(module: str, options: Any, message: str) -> None:
    """The message names the option."""
    with pytest.raises(ConfigError, match=message):
        records(f"{module}:numbered", **options)


def test_an_exception_of_a_generator_is_an_error_with_the_number_of_records_before_it(module: str) -> None:
    """A generator that raised cannot be continued."""
    message = rf"source {module}:breaking \(python\) cannot be read after record 1: RecursionError: deep"
    with pytest.raises(DataError, match=message):
        records(f"{module}:breaking")


def test_a_lost_connection_of_a_generator_is_raised_unchanged_for_a_retry(module: str) -> None:
    """The stage is retried."""
    with pytest.raises(ConnectionError, match="the desk is away"):
        records(f"{module}:away")


def test_a_function_that_returns_no_iterable_is_an_error(module: str) -> None:
    """7 cannot be iterated over."""
    with pytest.raises(DataError, match="'int' object is not iterable"):
        records(f"{module}:nothing")


def test_a_module_that_fails_while_it_is_imported_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception of the module, not only ImportError."""
    (tmp_path / "spoiled_scenarios.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"module spoiled_scenarios cannot be imported \(ZeroDivisionError"):
        records("spoiled_scenarios:f")


def test_a_generator_that_does_not_end_is_an_error(module: str) -> None:
    """The limit is 10,000,000 records, here 1,000."""
    with pytest.raises(DataError, match="endless does not end after 1000 records"):
        list(read_python(f"{module}:endless", {}, most=1000))
