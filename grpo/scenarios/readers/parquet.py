"""Parquet: a scenario's fields as columns, nested ones as JSON text or as Arrow lists and structs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.errors import DataError
from grpo.scenarios.parquet import DERIVED, is_scenario_table
from grpo.scenarios.readers.arrow import ParquetRows
from grpo.scenarios.readers.columns import row_record
from grpo.scenarios.readers.record import Record


def read_parquet(path: Path) -> Iterator[Record]:
    """Read a Parquet file batch by batch; of a table that ingestion wrote, the derived columns are left out.

    Raises `DataError` for a missing, truncated or damaged file and one without the column `id`.
    """
    rows = ParquetRows(path)
    names = [name for name in rows.names if name not in DERIVED or not is_scenario_table(rows.schema)]
    if "id" not in names:
        raise DataError(f"{path} has no column id, only {', '.join(names)}; name the columns like a scenario's fields")
    for row in rows.read(names):
        yield row_record(path, row)
