"""Tables of scenarios: read back as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenario import Expected, Metadata, Scenario
from grpo.scenarios.table import SCHEMA, read_scenarios, scenario_row, start_digest, write_scenarios

FULL = Scenario(
    id="full",
    topic="returns",
    domain="sales",
    user_responses=("Grüß Gott, 你好", "two\nlines"),
    goal="a refund",
    context="the shop closes at nine",
    tools=({"name": "refund", "description": "", "parameters": {"type": "object"}},),
    world={"orders": {"7": {"price": 12.5, "count": 3, "whole": 2.0, "note": None, "big": 2**70}}},
    expected=Expected(responses=("Done.",), facts=("30 days",), calls=({"name": "refund", "arguments": {}},)),
    metadata=Metadata(difficulty="hard", category="return", source="shop", licence="MIT", consent="yes"),
    split="heldout",
)
BARE = Scenario(id="bare", user_responses=("Hi.",))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a full scenario and a minimal one."""
    path = tmp_path / "scenarios.parquet"
    assert write_scenarios(path, [FULL, BARE]) == 2
    return path


def test_scenarios_come_back_equal_and_with_the_same_hash(table: Path) -> None:
    """Whole numbers stay whole, floats stay floats, and the order is kept."""
    scenarios = list(read_scenarios(table))
    assert scenarios == [FULL, BARE]
    assert [scenario.hash for scenario in scenarios] == [FULL.hash, BARE.hash]


def test_derived_columns_have_the_values_of_the_scenario(table: Path) -> None:
    """The columns can be read without parsing a scenario."""
    row = pq.read_table(table).to_pylist()[0]
    assert (row["hash"], row["text_digest"]) == (FULL.hash, start_digest(FULL))
    assert (row["category"], row["difficulty"], row["domain"], row["split"]) == ("return", "hard", "sales", "heldout")


def test_texts_that_differ_in_case_and_punctuation_have_the_same_digest() -> None:
    """Another word makes another digest."""
    first, second, third = (
        start_digest(Scenario(id="x", user_responses=(text,)))
        for text in ("Where's  my ORDER?!", "wheres my order", "wheres my parcel")
    )
    assert first == second
    assert first != third


def test_some_scenarios_are_read_by_id(table: Path) -> None:
    """The order is the table's, not that of the ids."""
    assert [scenario.id for scenario in read_scenarios(table, ids=["bare", "full", "bare"])] == ["full", "bare"]
    assert [scenario.id for scenario in read_scenarios(table, ids=["bare"])] == ["bare"]


def test_a_missing_id_is_an_error(table: Path) -> None:
    """The id is one of another table."""
    with pytest.raises(DataError, match=r"has no scenario absent\. The ids are from another table"):
        list(read_scenarios(table, ids=["bare", "absent"]))


def test_a_truncated_table_is_an_error(table: Path) -> None:
    """Half of the file is cut off."""
    table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])
    with pytest.raises(DataError, match=r"truncated"):
        list(read_scenarios(table))


def test_another_table_is_an_error(tmp_path: Path) -> None:
    """A Parquet file without the schema's version is not read as scenarios."""
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"id": ["a"]}), path)
    with pytest.raises(DataError, match="schema version none, but this release reads 2"):
        list(read_scenarios(path))


def test_an_invalid_row_is_an_error(table: Path) -> None:
    """The error names the id of the row."""
    rows = pq.read_table(table).to_pylist()
    rows[1]["user_responses"] = [" "]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), table)
    with pytest.raises(DataError, match="scenario bare is not valid"):
        list(read_scenarios(table))


def test_large_worlds_are_written_in_small_row_groups(tmp_path: Path) -> None:
    """Five worlds of 16 MiB fill more than one row group of 64 MiB, so memory does not grow with their number."""
    path = tmp_path / "scenarios.parquet"
    world = {"log": "x" * 2**24}
    write_scenarios(path, (Scenario(id=str(index), goal="a refund", world=world) for index in range(5)))
    assert pq.read_metadata(path).num_row_groups == 2


@pytest.mark.parametrize("world", [{"n": float("nan")}, {"n": [float("inf")]}, {"n": 10**5000}])
def test_values_that_could_not_be_read_back_are_not_written(world: dict[str, Any]) -> None:
    """It would become null, or an error for the reader."""
    with pytest.raises(ValueError, match=r"expected value|out of range"):
        scenario_row(Scenario(id="a", goal="x", world=world))
    with pytest.raises(ValueError, match=r"expected value|out of range"):
        scenario_row(Scenario(id="a", goal="x", expected=Expected(state=world)))


def test_a_table_with_text_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    """The message has the remedy."""
    path = tmp_path / "scenarios.parquet"
    write_scenarios(path, [Scenario(id="a", goal="unmistakable")])
    table = pq.read_table(path)
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"unmistakable", b"\xffnmistakable"))
    with pytest.raises(DataError, match=r"is damaged: .*\. Ingest the sources again"):
        list(read_scenarios(path))
