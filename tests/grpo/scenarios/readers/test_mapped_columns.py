"""Columns of other names as fields of a scenario."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.config.scenarios import CsvSource, FileSource, HuggingFaceSource, Source
from grpo.errors import DataError
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

COLUMNS = {"id": "ticket", "user_responses": "question", "metadata.category": "topic"}
ROWS = [
    {"ticket": 17, "question": "Where is my parcel?", "topic": "delivery", "agent": "Ann"},
    {"ticket": 18, "question": '["My lamp broke.", "In May."]', "topic": None, "agent": "Ben"},
]
EXPECTED = [
    {"id": "17", "user_responses": ["Where is my parcel?"], "metadata": {"category": "delivery"}},
    {"id": "18", "user_responses": ["My lamp broke.", "In May."]},
]


def source(kind: str, folder: Path, columns: dict[str, str]) -> Source:
    """The rows in a format."""
    path = folder / f"rows.{kind}"
    if kind == "huggingface":
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(ROWS).save_to_disk(str(path))
        return HuggingFaceSource(kind="huggingface", path=str(path), columns=columns)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    else:
        mark = "\t" if kind == "tsv" else ","
        quoted = [['"' + str(cell or "").replace('"', '""') + '"' for cell in row.values()] for row in ROWS]
        path.write_text("\n".join(mark.join(cells) for cells in [list(ROWS[0]), *quoted]))
    if kind in ("csv", "tsv"):
        return CsvSource(kind="csv", path=str(path), columns=columns)
    return FileSource.model_validate({"kind": kind, "path": str(path), "columns": columns})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet", "huggingface"])
def test_mapped_columns_are_fields_in_every_format(tmp_path: Path, kind: str) -> None:
    """A number is text, a text is a script of one turn, an empty cell and another column are left out."""
    assert [record.data for record in read_records(source(kind, tmp_path, COLUMNS))] == EXPECTED


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "huggingface"])
def test_a_column_of_ones_own_goes_into_the_world(tmp_path: Path, kind: str) -> None:
    """Where a reward reads it by its name; a number of a format with types stays one."""
    columns = {"user_responses": "question", "world.number": "ticket", "world.by": "agent"}
    first = next(iter(read_records(source(kind, tmp_path, columns))))
    assert first.data is not None
    assert first.data["world"] == {"number": "17" if kind == "csv" else 17, "by": "Ann"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["csv", "parquet", "huggingface"])
def test_a_missing_column_is_an_error_that_lists_those_there_are(tmp_path: Path, kind: str) -> None:
    """Before a record is read."""
    with pytest.raises(DataError, match=r"no column ask.*ticket, question, topic, agent"):
        list(read_records(source(kind, tmp_path, {"user_responses": "ask"})))


def test_a_json_record_without_a_column_has_a_problem(tmp_path: Path) -> None:
    """Each record has columns of its own."""
    first, _ = read_records(source("jsonl", tmp_path, {"user_responses": "ask"}))
    assert first.problem == "no column ask: the record has ticket, question, topic, agent"


def test_an_unknown_field_is_an_error_that_lists_the_fields(tmp_path: Path) -> None:
    """`metadata.topic` is not one."""
    with pytest.raises(DataError, match=r"columns has metadata\.topic, which is not a field.*metadata\.category"):
        list(read_records(source("jsonl", tmp_path, {"metadata.topic": "topic"})))


def test_records_without_an_id_are_named_by_their_lines(tmp_path: Path) -> None:
    """Lines 1 and 2 of rows.jsonl, and a digest: a file of this name elsewhere has others."""
    records = read_records(source("jsonl", tmp_path, {"goal": "question"}))
    names = [str((record.data or {})["id"]) for record in records]
    assert [re.sub("-[0-9a-f]{6}$", "", name) for name in names] == ["rows-1", "rows-2"]
    assert names[0][-6:] != names[1][-6:]


@pytest.mark.parametrize(
    ("field", "cell", "value"),
    [
        ("expected.facts", "refund", {"facts": ["refund"]}),
        ("expected.calls", '[{"name": "a", "arguments": {}}]', {"calls": [{"name": "a", "arguments": {}}]}),
        ("expected.responses", "[sic] yes", {"responses": ["[sic] yes"]}),
    ],
)
def test_cells_have_the_types_of_their_fields(tmp_path: Path, field: str, cell: Any, value: Any) -> None:
    """A list of one text, or JSON."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "Hi.", "answer": cell}))
    columns = {"user_responses": "question", field: "answer"}
    (record,) = read_records(FileSource(kind="jsonl", path=str(path), columns=columns))
    assert (record.data or {})["expected"] == value


def test_text_that_should_be_json_is_a_problem(tmp_path: Path) -> None:
    """The world of a scenario."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "Hi.", "state": "open"}')
    (record,) = read_records(
        FileSource(kind="jsonl", path=str(path), columns={"user_responses": "question", "world": "state"})
    )
    assert (record.problem or "").startswith("column state is not JSON: ")


def parquet(folder: Path, columns: dict[str, Any], fields: dict[str, str]) -> list[SourceRecord]:
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return list(read_records(FileSource(kind="parquet", path=str(folder / "rows.parquet"), columns=fields)))


def test_binary_cells_are_text_if_they_are_utf_8(tmp_path: Path) -> None:
    """Some writers of Parquet do not mark text. Other bytes are no text."""
    given = {"q": [b"Where?", "T\u00fcr".encode(), b"\xff\xfe"], "id": ["a", "b", "c"]}
    first, second, third = parquet(tmp_path, given, {"id": "id", "user_responses": "q"})
    assert first.data == {"id": "a", "user_responses": ["Where?"]}
    assert second.data == {"id": "b", "user_responses": ["T\u00fcr"]}
    assert third.problem == "column q is not a text: it has 2 bytes that are not UTF-8"


def test_nan_is_an_empty_cell(tmp_path: Path) -> None:
    """As pandas writes it for a missing number: no category `nan`."""
    given = {"q": ["Where?"], "topic": [float("nan")], "id": [1.0]}
    (record,) = parquet(tmp_path, given, {"id": "id", "user_responses": "q", "metadata.category": "topic"})
    assert record.data == {"id": "1.0", "user_responses": ["Where?"]}


def test_a_column_of_maps_is_read(tmp_path: Path) -> None:
    """pyarrow's list functions do not take maps."""
    maps = pa.array([[("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string()))
    given = {"id": ["x", "y", "z"], "user_responses": [["Hi."], ["Ho."], ["Hu."]], "attributes": maps}
    pq.write_table(pa.table(given), tmp_path / "rows.parquet")
    rows = list(ParquetRows(tmp_path / "rows.parquet").read(["id", "attributes"]))
    assert [row.problem for row in rows] == [None, None, None]
    assert rows[0].cells["attributes"] == {"a": "1", "b": "2"}
