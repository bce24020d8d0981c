"""Parquet files as sources."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenarios.parquet import write_scenarios
from grpo.scenarios.readers.parquet import read_parquet
from grpo.scenarios.scenario import Metadata, Scenario


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
    """What ingestion wrote can be read back as records: derived columns are no unknown fields."""
    scenario = Scenario(id="a", user_responses=("Hi.",), metadata=Metadata(category="greeting"), side="train")
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
    assert broken.problem.startswith("column world is no JSON")
    assert (good.line, good.data) == (2, {"id": "b", "world": {}})


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    """A Parquet file without its end has lost its schema."""
    path = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["a"] * 100}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"source\.parquet is no readable Parquet file \(truncated\?\)"):
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
