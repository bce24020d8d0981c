"""Parquet: a scenario's fields as columns, nested ones as JSON text or as Arrow lists and structs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from grpo.errors import DataError
from grpo.scenarios.parquet import DERIVED, is_scenario_table
from grpo.scenarios.readers.columns import to_fields
from grpo.scenarios.readers.record import Record
from grpo.tables import open_parquet

_ROWS = 512


def read_parquet(path: Path) -> Iterator[Record]:
    """Read a Parquet file batch by batch; of a table that ingestion wrote, the derived columns are left out.

    Raises `DataError` for a missing or truncated file and one without the column `id`.
    """
    file = open_parquet(path)
    names = [n for n in file.schema_arrow.names if n not in DERIVED or not is_scenario_table(file.schema_arrow)]
    if "id" not in names:
        raise DataError(f"{path} has no column id, only {', '.join(names)}; name the columns like a scenario's fields")
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS, columns=names):
            for row in batch.to_pylist():
                number += 1
                try:
                    yield Record(source=str(path), line=number, data=to_fields(row))
                except ValueError as error:
                    yield Record(source=str(path), line=number, data=None, raw=str(row), problem=str(error))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is damaged after row {number}: {error}; write it again") from error
