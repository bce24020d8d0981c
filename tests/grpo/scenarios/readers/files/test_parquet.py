"""Parquet files as sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.parquet_rows import ParquetRows
from grpo.scenario import Metadata, Scenario
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.table import write_scenarios


def test_nested_fields_are_json_text_or_arrow_structs(tmp_path: Path) -> None:
    """Both rows say the same; a null is a missing field, in a struct too."""
    path = tmp_path / "source.parquet"
    rows = [{"id": "a", "topic": None, "user_responses": ["Hi."], "metadata": {"category": "greeting", "source": None}}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    texts = tmp_path / "texts.parquet"
    rows = [{"id": "a", "user_responses": '["Hi."]', "metadata": '{"category": "greeting"}'}]
    pq.write_table(pa.Table.from_pylist(rows), texts)
    expected = {"id": "a", "user_responses": ["Hi."], "metadata": {"category": "greeting"}}
    assert [record.data for file in (path, texts) for record in read_parquet(file)] == [expected, expected]


def test_a_table_of_scenarios_is_a_source_again(tmp_path: Path) -> None:
    """Tables of ingestion are readable as records: derived columns are not unknown fields."""
    scenario = Scenario(id="a", user_responses=("Hi.",), metadata=Metadata(category="greeting"), split="train")
    path = tmp_path / "scenarios.parquet"
    write_scenarios(path, [scenario])
    (record,) = read_parquet(path)
    assert Scenario.model_validate(record.data) == scenario


def test_broken_json_in_a_cell_is_a_problem(tmp_path: Path) -> None:
    """One bad cell spoils one record."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "world": ["{", "{}"]}), path)
    broken, good = read_parquet(path)
    assert broken.problem is not None
    assert broken.problem.startswith("column world is not JSON")
    assert (good.line, good.data) == (2, {"id": "b", "world": {}})


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    """A Parquet file without its end has lost its schema."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"source\.parquet is not a readable Parquet file \(truncated\?\)"):
        list(read_parquet(path))


def test_damage_inside_a_file_is_an_error(tmp_path: Path) -> None:
    """Overwritten pages are found when they are read."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": [f"scenario {index}" for index in range(1000)]}), path)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged after row 0"):
        list(read_parquet(path))


def test_a_file_without_ids_is_an_error_that_lists_its_columns(tmp_path: Path) -> None:
    """Columns are named like a scenario's fields."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"text": ["Hi."]}), path)
    with pytest.raises(DataError, match="no column id, only text"):
        list(read_parquet(path))


def plain(path: Path, table: pa.Table) -> bytearray:
    """Write a table as it is: no compression, no dictionaries, no second place where its words stand."""
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False, store_schema=False)
    return bytearray(path.read_bytes())


def test_words_that_are_not_utf8_spoil_their_row_only(tmp_path: Path) -> None:
    """One byte of the second row is changed on disk."""
    path = tmp_path / "source.parquet"
    content = plain(path, pa.table({"id": ["a", "b", "c"], "goal": ["first", "second", "third"]}))
    content[content.index(b"second")] = 0xFF
    path.write_bytes(content)
    first, second, third = read_parquet(path)
    assert (first.data, third.data) == ({"id": "a", "goal": "first"}, {"id": "c", "goal": "third"})
    assert second.problem is not None
    assert second.problem.startswith("column cannot be decoded: goal: UnicodeDecodeError")
    assert (second.line, second.raw) == (2, '{"id": "b"}')


def test_a_word_of_a_dictionary_that_is_not_utf8_spoils_the_rows_that_use_it(tmp_path: Path) -> None:
    """A dictionary holds it once for both."""
    path = tmp_path / "source.parquet"
    table = pa.table({"id": ["a", "b", "c"], "goal": ["second", "first", "second"]})
    pq.write_table(table, path, compression="none", write_statistics=False)
    content = bytearray(path.read_bytes())
    content[content.index(b"second")] = 0xFF
    path.write_bytes(content)
    assert [record.data is None for record in read_parquet(path)] == [True, False, True]


def test_an_impossible_date_spoils_its_row_only(tmp_path: Path) -> None:
    """Python has no year 300,000."""
    path = tmp_path / "source.parquet"
    dates = pa.array([0, 2**53, 0], pa.timestamp("ms"))
    plain(path, pa.table({"id": ["a", "b", "c"], "world": pa.StructArray.from_arrays([dates], ["day"])}))
    records = list(read_parquet(path))
    assert [record.data is None for record in records] == [False, True, False]
    assert records[1].problem is not None
    assert records[1].problem.startswith("column cannot be decoded: world: ")


def lie(path: Path, claims: Callable[[pq.FileMetaData], int], honest: int) -> None:
    """Change the first byte of the footer that makes a number of it another one and leaves the file readable."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for position in range(begin, len(content) - 8):
        path.write_bytes(content[:position] + bytes([content[position] + 2 & 0xFF]) + content[position + 1 :])
        try:
            if claims(pq.read_metadata(path)) == honest + 1:  # numbers are zigzag: two more is one more
                return
        except (OSError, pa.ArrowException):
            continue
    raise AssertionError("no such byte")


def test_a_footer_that_contradicts_itself_is_an_error(tmp_path: Path) -> None:
    """It claims four rows and lists a row group of three."""
    path = tmp_path / "source.parquet"
    plain(path, pa.table({"id": ["a", "b", "c"]}))
    lie(path, lambda footer: footer.num_rows, 3)
    with pytest.raises(DataError, match="its footer claims 4 rows, its row groups 3"):
        list(read_parquet(path))


def test_rows_that_the_footer_claims_and_the_pages_have_not_are_an_error(tmp_path: Path) -> None:
    """File and row group claim four rows of the three that are there."""
    path = tmp_path / "source.parquet"
    plain(path, pa.table({"id": ["a", "b", "c"]}))
    lie(path, lambda footer: footer.num_rows, 3)
    lie(path, lambda footer: footer.row_group(0).num_rows, 3)
    with pytest.raises(DataError, match="is damaged"):
        list(read_parquet(path))


def test_a_text_that_each_row_repeats_is_not_expanded(tmp_path: Path) -> None:
    """17 MiB stand in the file once; decoded, the batch of 200 rows would take 3.4 GiB."""
    path = tmp_path / "source.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["x" * (17 * 2**20)]))
    pq.write_table(pa.table({"id": [str(k) for k in range(200)], "goal": texts}), path, compression="zstd")
    problems = {record.problem for record in read_parquet(path)}
    assert len(problems) == 3  # ids of one, two and three digits
    assert all(problem and problem.startswith("over-long row: 178257") for problem in problems)


@pytest.mark.parametrize("bound", ["largest_chunk", "most_values"])
def test_a_column_that_expands_too_far_is_refused_before_it_is_read(tmp_path: Path, bound: str) -> None:
    """The footer says how much it is; the remedy is in the message."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["a" * 1000] * 1000}), path)
    with pytest.raises(DataError, match=r"column id has 1000 values of .* Write it with smaller row groups"):
        ParquetRows(path, **{bound: 100})


def test_a_page_that_its_checksum_denies_is_an_error(tmp_path: Path) -> None:
    """Checksums of the writer are compared: the words are valid, but not the ones that were written."""
    path = tmp_path / "source.parquet"
    table = pa.table({"id": ["first", "second"]})
    pq.write_table(table, path, use_dictionary=False, write_statistics=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index(b"second")] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="CRC checksum"):
        list(read_parquet(path))
