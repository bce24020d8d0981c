"""Python generators as sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo.errors import DataError
from grpo.scenarios.readers.generator import read_generator

MODULE = """
def endless():
    number = 0
    while True:
        yield {"id": str(number)}
        number += 1

def mixed():
    yield {"id": "a"}
    yield ["b"]

constant = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be imported."""
    (tmp_path / "drawn_scenarios.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "drawn_scenarios"


def test_a_generator_is_read_lazily(module: str) -> None:
    """Of an endless one the first records can be had."""
    records = read_generator(f"{module}:endless")
    assert [next(records).data for _ in range(2)] == [{"id": "0"}, {"id": "1"}]


def test_what_is_no_dict_is_a_problem(module: str) -> None:
    """The record after it is counted on."""
    _, second = read_generator(f"{module}:mixed")
    assert (second.line, second.problem, second.source) == (2, "not a dict: list", f"{module}:mixed")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "module no_such_module cannot be imported"),
        ("drawn_scenarios:absent", "has no function absent"),
        ("drawn_scenarios:constant", "has no function constant"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_function_that_is_not_there_is_an_error(function: str, message: str) -> None:
    """The message says whether the module or the function is missing."""
    with pytest.raises(DataError, match=message):
        list(read_generator(function))
