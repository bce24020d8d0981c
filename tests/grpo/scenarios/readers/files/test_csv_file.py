"""CSV and TSV: quoting, columns, and rows that cannot be read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from grpo.config.csv_format import CsvFormat
from grpo.errors import DataError
from grpo.scenarios.readers.files.csv_file import read_csv
from grpo.scenarios.records import SourceRecord


def records(tmp_path: Path, content: str | bytes, name: str = "source.csv") -> list[SourceRecord]:
    """Records of a file with this content."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(read_csv(path))


def test_quoted_tabs_and_newlines_stay_in_their_cell(tmp_path: Path) -> None:
    """A turn of two lines is one cell of one row; the next row's line is counted after it."""
    first, second = records(
        tmp_path, 'id\tuser_0\tuser_1\na\t"two\nlines"\t"a\ttab"\nb\t"a ""quote"""\tBye.\n', name="source.tsv"
    )
    assert first.data == {"id": "a", "user_responses": ["two\nlines", "a\ttab"]}
    assert (second.line, second.data) == (4, {"id": "b", "user_responses": ['a "quote"', "Bye."]})


def test_turns_may_be_json_in_one_cell(tmp_path: Path) -> None:
    """Nested fields are JSON; empty cells are missing fields."""
    content = 'id,user_responses,topic,metadata\na,"[""Hi."", ""Bye.""]",,"{""category"": ""greeting""}"\n'
    assert records(tmp_path, content)[0].data == {
        "id": "a",
        "user_responses": ["Hi.", "Bye."],
        "metadata": {"category": "greeting"},
    }


def test_turn_columns_are_ordered_by_number(tmp_path: Path) -> None:
    """user_10 comes after user_2, whatever the header's order."""
    assert records(tmp_path, "user_10,id,user_2\nlast,a,first\n")[0].data == {
        "id": "a",
        "user_responses": ["first", "last"],
    }


def test_an_empty_turn_between_two_is_kept_and_one_after_the_last_is_not(tmp_path: Path) -> None:
    """Validation quarantines a gap; trailing empty cells only fill the row."""
    (record,) = records(tmp_path, "id,user_0,user_1,user_2,user_3\na,Hi.,,Bye.,\n")
    assert record.data == {"id": "a", "user_responses": ["Hi.", "", "Bye."]}


def test_byte_order_mark_and_carriage_returns_are_tolerated(tmp_path: Path) -> None:
    """Spreadsheets write both."""
    assert records(tmp_path, b"\xef\xbb\xbfid,user_0\r\na,Hi.\r\n")[0].data == {"id": "a", "user_responses": ["Hi."]}


def test_bytes_that_are_not_utf8_quarantine_their_row_only(tmp_path: Path) -> None:
    """The problem names the column; the next row is read."""
    broken, good = records(tmp_path, b"id,user_0\na,caf\xe9\nb,Hi.\n")
    assert (broken.data, broken.problem, broken.raw) == (
        None,
        "not UTF-8: column user_0. Set the source's encoding, such as cp1252",
        "a,caf\ufffd\n",
    )
    assert good.data == {"id": "b", "user_responses": ["Hi."]}


@pytest.mark.parametrize("row", ["a", "a,Hi.,more"])
def test_a_row_of_another_width_is_a_problem(tmp_path: Path, row: str) -> None:
    """With too few or too many cells the columns are unknown."""
    (record,) = records(tmp_path, f"id,user_0\n{row}\n")
    assert record.data is None
    assert record.problem == f"wrong number of cells: {row.count(',') + 1}, the header has 2"


def test_an_unclosed_quote_does_not_lose_the_rows_before_it(tmp_path: Path) -> None:
    """The open quote is a problem at its own line."""
    good, broken = records(tmp_path, 'id,user_0\na,Hi.\nb,"Bye.\n')
    assert good.data == {"id": "a", "user_responses": ["Hi."]}
    assert (broken.line, broken.problem) == (3, "broken quoting: unexpected end of data")


def test_every_row_after_a_quote_that_is_never_closed_is_a_problem(tmp_path: Path) -> None:
    """So that the share of rows that cannot be read is above the limit of a run."""
    rows = "".join(f"{number},Hi.\n" for number in range(4, 40))
    good, *broken = records(tmp_path, f'id,user_0\n2,Hi.\n3,"Bye.\n{rows}')
    assert good.problem is None
    assert [record.line for record in broken] == list(range(3, 40))
    assert {record.problem for record in broken} == {"broken quoting: unexpected end of data"}


SCREEN = '2\t"Refund now\n3\tWhere is it?\n4\tMy screen has 15"\n'


def test_rows_in_a_quoted_cell_are_problems(tmp_path: Path) -> None:
    """The first quote has its end in the last of three rows, which is a cell of three lines by the rules of CSV."""
    first, *broken, last = records(tmp_path, f"id\tuser_0\n1\tHi.\n{SCREEN}5\tBye.\n", name="a.tsv")
    assert (first.data, last.data) == tuple({"id": i, "user_responses": [t]} for i, t in (("1", "Hi."), ("5", "Bye.")))
    assert [record.line for record in broken] == [3, 4, 5]
    assert {record.problem for record in broken} == {
        "broken quoting: 3 rows of the table are in one quoted cell. If quotes are text in this file, set the source's "
        "quoting to false, and otherwise to true"
    }


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("a", "My order:\nlamp,2\nbulb,4\nThanks."),
        ("7", "Please buy:\n1, milk\n2, eggs"),
        ("1", "Sum the rows:\n1,2\n4,5\nThanks"),
        ("1", "I live\nin Rome, Italy\nor Oslo, Norway\nor Bonn, Germany\nGreetings"),
    ],
)
def test_a_table_in_a_quoted_cell_is_text_of_the_cell(tmp_path: Path, number: str, text: str) -> None:
    """Lines with as many commas as the row, which do not go on with its number."""
    (record,) = records(tmp_path, f'id,user_0\n{number},"{text}"\n')
    assert record.data == {"id": number, "user_responses": [text]}


def test_rows_in_a_quoted_cell_are_text_if_the_settings_say_so(tmp_path: Path) -> None:
    """`quoting: true` has no doubts. A line separator of Unicode ends no line."""
    path = tmp_path / "a.tsv"
    path.write_text(f"id\tuser_0\n{SCREEN}", encoding="utf-8")
    (record,) = read_csv(path, CsvFormat(quoting=True))
    assert record.data == {"id": "2", "user_responses": ["Refund now\n3\tWhere is it?\n4\tMy screen has 15"]}
    broken = records(tmp_path, 'id,user_0\na,Hi.\nb,"Bye.\u2028So.\n')
    assert [record.line for record in broken] == [2, 3]


def test_quotes_are_text_without_quoting(tmp_path: Path) -> None:
    """Each line is a row."""
    path = tmp_path / "a.tsv"
    path.write_text(f"id\tuser_0\n{SCREEN}")
    read = read_csv(path, CsvFormat(quoting=False))
    turns = [record.data["user_responses"] for record in read if record.data is not None]
    assert turns == [['"Refund now'], ["Where is it?"], ['My screen has 15"']]


def test_a_cell_that_is_not_json_is_a_problem_with_its_column(tmp_path: Path) -> None:
    """Nested fields must be JSON."""
    (record,) = records(tmp_path, "id,world\na,{orders}\n")
    assert record.problem is not None
    assert record.problem.startswith("column world is not JSON: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("name,user_0\na,Hi.\n", r"no column id in the header \(name, user_0\)"),
        ("id,topic,topic\n", "the header has topic twice"),
        ("id,user_responses,user_0\n", r"the header has user_responses \(also given as user_0, …\) twice"),
        ('id,"us"er\n', "the header cannot be read"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    """Rows cannot be read without a valid header."""
    with pytest.raises(DataError, match=message):
        records(tmp_path, content)


def test_a_quoted_cell_beyond_the_limit_is_one_record_and_the_next_row_is_read(tmp_path: Path) -> None:
    """Lines inside the cell look like rows; `csv.reader` alone reads them as rows."""
    inside = "".join(f"smuggled-{k},Hi.\n" for k in range(20_000))
    good, large, last = records(tmp_path, f'id,user_0\na,Hi.\nb,"{inside}"\nc,Bye.\n')
    assert good.data == {"id": "a", "user_responses": ["Hi."]}
    assert (large.line, large.problem) == (3, "over-long cell: more than 131072 characters")
    assert (last.line, last.data) == (20_004, {"id": "c", "user_responses": ["Bye."]})


def test_a_row_of_more_than_16_mi_characters_is_one_record(tmp_path: Path) -> None:
    """The reader skips to its closing quote."""
    line = "x" * 1023 + "\n"
    large, last = records(tmp_path, f'id,user_0\na,"{line * (17 * 1024)}"\nb,Hi.\n')
    assert large.problem == "over-long row: more than 16777216 characters"
    assert len(large.raw) == 2000
    assert last.data == {"id": "b", "user_responses": ["Hi."]}


def test_a_quoting_error_ends_with_its_line(tmp_path: Path) -> None:
    """Text after a closing quote is a problem of its row; the next line is a row of its own."""
    broken, good = records(tmp_path, 'id,user_0\na,"Hi."you, "x\nb,Bye.\n')
    assert broken.problem == "broken quoting: ',' expected after '\"'"
    assert good.data == {"id": "b", "user_responses": ["Bye."]}


def test_the_field_size_limit_of_the_process_is_not_changed(tmp_path: Path) -> None:
    """`csv.field_size_limit` belongs to the whole process."""
    before = csv.field_size_limit()
    records(tmp_path, f'id,user_0\na,"{"x" * 200_000}"\n')
    assert csv.field_size_limit() == before


def test_a_turn_column_with_a_huge_number_is_a_problem_of_its_record(tmp_path: Path) -> None:
    """Python refuses to read 5,000 digits as an integer."""
    (record,) = records(tmp_path, f"id,user_{'9' * 5000}\na,Hi.\n")
    assert record.problem is not None
    assert "integer string conversion" in record.problem


def test_a_header_of_very_many_columns_is_refused(tmp_path: Path) -> None:
    """And a million empty names at its end, as spreadsheets write them, take no time that grows with their square."""
    path = tmp_path / "rows.csv"
    path.write_text(f"id,{','.join(f'c{number}' for number in range(10_000))}\n")
    with pytest.raises(DataError, match=r"rows\.csv has 10001 columns, and at most 10000 are read"):
        list(read_csv(path))
    path.write_text(f"id,user_0{',' * 10**6}\na,Hi.{',' * 10**6}\n")
    assert [record.data for record in read_csv(path)] == [{"id": "a", "user_responses": ["Hi."]}]
