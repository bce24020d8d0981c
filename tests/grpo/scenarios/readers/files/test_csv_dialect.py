"""Encodings, delimiters and headers of delimited files as programs write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo.config.csv_format import CsvFormat
from grpo.errors import DataError
from grpo.scenarios.readers.files.csv_file import read_cells, read_csv

TABLE = 'id;text;price\n17;"Größe;\nAS ""M""?";3,50\n18;Ja.;4\n'
CELLS = [
    {"id": "17", "text": 'Größe;\nAS "M"?', "price": "3,50"},
    {"id": "18", "text": "Ja.", "price": "4"},
]


def cells(tmp_path: Path, content: bytes, name: str = "t.csv", **settings: Any) -> list[Any]:
    """Cells of each row, or its problem."""
    path = tmp_path / name
    path.write_bytes(content)
    rows = read_cells(path, CsvFormat(**settings), required=("id", "text"))
    return [row.data if row.data is not None else row.problem for row in rows]


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_is_certain_is_found_out(tmp_path: Path, delimiter: str, encoding: str, ends: str) -> None:
    """Semicolons beside decimal commas, quoted delimiters and line breaks, byte order marks, blank lines in front."""
    text = TABLE.replace(";", "\x00").replace("\x00", delimiter)
    if delimiter == ",":
        text = text.replace("3,50", '"3,50"')
    content = f"\n \n{delimiter * 2}\n{text}".replace("\n", ends).encode(encoding)
    expected = [{k: v.replace(";", delimiter).replace("\n", ends) for k, v in row.items()} for row in CELLS]
    assert cells(tmp_path, content) == expected


def test_a_line_that_states_the_delimiter_is_obeyed(tmp_path: Path) -> None:
    """Excel's own `sep=`, also in quotes; a setting comes before it."""
    for line in ("sep=|", '"sep=|"', "SEP=|"):
        assert cells(tmp_path, f"{line}\r\nid|text\r\n1|a,b\r\n".encode()) == [{"id": "1", "text": "a,b"}]
    assert cells(tmp_path, b"sep=|\nid;text\n1;a|b\n", delimiter=";") == [{"id": "1", "text": "a|b"}]


def test_the_wanted_columns_decide_between_two_delimiters(tmp_path: Path) -> None:
    """A comma in the name of a column; where nothing decides, the setting is named."""
    assert cells(tmp_path, b"id;text;first, last\n1;a;b\n") == [{"id": "1", "text": "a", "first, last": "b"}]
    with pytest.raises(DataError, match=r"comma and semicolon all split the header\. Set the source's delimiter"):
        cells(tmp_path, b"nr,a;text,b\n1,2;3,4\n")
    assert cells(tmp_path, b"id:text\n1:a\n", delimiter=":") == [{"id": "1", "text": "a"}]


def test_bytes_of_another_encoding_name_the_setting(tmp_path: Path) -> None:
    """In a row, and in the header; with the setting both are read."""
    content = "id;text;größe\n1;Käse;L\n".encode("cp1252")
    with pytest.raises(DataError, match=r"the header is not UTF-8\. Set the source's encoding, such as cp1252"):
        cells(tmp_path, content)
    assert cells(tmp_path, content, encoding="cp1252") == [{"id": "1", "text": "Käse", "größe": "L"}]
    assert cells(tmp_path, "id;text\n1;Käse\n2;x\n".encode("cp1252")) == [
        "not UTF-8: column text. Set the source's encoding, such as cp1252",
        {"id": "2", "text": "x"},
    ]


def test_utf_16_without_a_mark_names_the_setting(tmp_path: Path) -> None:
    """And a setting that contradicts the mark is refused."""
    content = "id,text\n1,a\n".encode("utf-16-le")
    with pytest.raises(DataError, match=r"zero in every second byte, as UTF-16 has\. Set encoding: utf-16-le or"):
        cells(tmp_path, content)
    assert cells(tmp_path, content, encoding="utf-16-le") == [{"id": "1", "text": "a"}]
    with pytest.raises(DataError, match="begins with the byte order mark of utf-8-sig, and encoding is cp1252"):
        cells(tmp_path, b"\xef\xbb\xbfid,text\n", encoding="cp1252")


def test_delimiters_at_the_end_of_lines_are_left_out(tmp_path: Path) -> None:
    """In the header and in rows; a cell with content there is a problem."""
    read = cells(tmp_path, b"id,text,,\n1,a,,\n2,b\n3,c,,d\n")
    assert read == [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}, "wrong number of cells: 4, the header has 2"]


def test_a_name_that_stands_twice_matters_where_it_is_read(tmp_path: Path) -> None:
    """Jira writes `Comment` twenty times; `text` twice leaves open which one is meant."""
    assert cells(tmp_path, b"id,text,Comment,Comment\n1,a,x,y\n")[0]["text"] == "a"
    with pytest.raises(DataError, match="the header has text twice"):
        cells(tmp_path, b"id,text,text\n1,a,b\n")
    (tmp_path / "own.csv").write_bytes(b"id,user_0,x,x\na,Hi.,1,2\n")
    with pytest.raises(DataError, match="the header has x twice"):
        list(read_csv(tmp_path / "own.csv"))


@pytest.mark.parametrize(
    ("magic", "reason"),
    [
        (b"PK\x03\x04", "not text, but an Excel workbook or another archive. Save the sheet as CSV UTF-8"),
        (b"PAR1", "not text, but Parquet. Read it with kind parquet"),
        (b"\x1f\x8b", "is damaged: .*Fetch it again"),
    ],
)
def test_another_format_says_what_it_is(tmp_path: Path, magic: bytes, reason: str) -> None:
    """Under the name of a CSV file."""
    with pytest.raises(DataError, match=reason):
        cells(tmp_path, magic + b"\x00" * 50)


def test_an_unknown_encoding_is_refused() -> None:
    """As well as a codec that is not one of text, and a delimiter that quotes."""
    for settings in ({"encoding": "windows-9"}, {"encoding": "base64"}, {"delimiter": '"'}, {"delimiter": ";;"}):
        with pytest.raises(ValueError, match=r"encoding|delimiter"):
            CsvFormat.model_validate(settings)
