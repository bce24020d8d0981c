"""Ends of the rows of a delimited file."""

from __future__ import annotations

import csv
import io
import random

import pytest

from grpo.scenarios.readers.files.csv_rows import read_texts


def texts(content: str, delimiter: str = ",") -> list[str]:
    """The texts of the rows."""
    return [row.text for row in read_texts(io.StringIO(content, newline=""), delimiter)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('a,"two\nlines"\nb,c\n', ['a,"two\nlines"\n', "b,c\n"]),
        ('"a ""quote""\n"\r\nb', ['"a ""quote""\n"\r\n', "b"]),
        ('5" pipe,x\nb\n', ['5" pipe,x\n', "b\n"]),  # a quote inside a plain cell is a character
        ('a, "x\nb\n', ['a, "x\n', "b\n"]),
        ('"a"b,"\nc\n', ['"a"b,"\n', "c\n"]),  # a quoting error ends with its line
        ("a\r\rb", ["a\r", "\r", "b"]),
        ('a,"open\nb', ['a,"open\nb']),
        ("", []),
    ],
)
def test_a_row_ends_where_no_quote_is_open(content: str, expected: list[str]) -> None:
    """The expected rows are worked out by hand."""
    assert texts(content) == expected


def test_rows_are_those_of_the_csv_module() -> None:
    """3,000 random texts of quotes, delimiters, line ends and letters, seed 0, where `csv` raises no error."""
    draw = random.Random(0)
    compared = 0
    for _ in range(3000):
        content = "".join(draw.choices('",\n\rab', weights=(4, 3, 2, 1, 3, 3), k=draw.randrange(1, 30)))
        try:
            expected = [row for row in csv.reader(io.StringIO(content, newline=""), strict=True) if row]
        except csv.Error:
            continue
        rows = (row for text in texts(content) for row in csv.reader([text], strict=True))
        assert [row for row in rows if row] == expected, repr(content)
        compared += 1
    assert compared > 1000
