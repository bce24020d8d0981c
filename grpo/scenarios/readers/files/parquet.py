"""Parquet: a scenario's fields as columns, nested ones as JSON text or as Arrow lists and structs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from grpo.errors import DataError
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.readers.files.row_fields import row_record
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.table import DERIVED_COLUMNS, is_scenario_table


def read_parquet(path: Path, *, columns: Sequence[str] | None = None) -> Iterator[SourceRecord]:
    """Read a Parquet file batch by batch. With `columns`, the cells of these columns are the data, unchanged.

    The derived columns of a table of scenarios are left out. Raises `DataError` if the file is missing, truncated or
    damaged, or if it lacks one of `columns`, or without `columns` the column `id`.
    """
    rows = ParquetRows(path)
    names = [name for name in rows.names if name not in DERIVED_COLUMNS or not is_scenario_table(rows.schema)]
    missing = [column for column in ("id",) if column not in names] if columns is None else set(columns) - set(names)
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(sorted(missing))}, only {', '.join(names)}. Rename the columns, or "
            "name them in the settings of the source"
        )
    for row in rows.read(names if columns is None else list(columns)):
        yield row_record(path, row, fields=None if columns is None else dict)
