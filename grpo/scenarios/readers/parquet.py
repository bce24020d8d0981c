"""Parquet: a scenario's fields as columns, nested ones as JSON text or as Arrow lists and structs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from grpo.errors import DataError
from grpo.scenarios.parquet import DERIVED, is_scenario_table
from grpo.scenarios.readers.columns import to_fields
from grpo.scenarios.readers.record import Record
from grpo.tables import open_parquet

_ROWS = 512


def read_parquet(path: Path, *, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Read a Parquet file batch by batch, or these columns of it as they are.

    Of a table that ingestion wrote, the derived columns are left out. Raises `DataError` for a missing or truncated
    file and one without the column `id`, or one of `columns`.
    """
    file = open_parquet(path)
    names = [n for n in file.schema_arrow.names if n not in DERIVED or not is_scenario_table(file.schema_arrow)]
    missing = [column for column in ("id",) if column not in names] if columns is None else set(columns) - set(names)
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(sorted(missing))}, only {', '.join(names)}; name the columns like a "
            "scenario's fields, or in the settings as they are"
        )
    fields = to_fields if columns is None else dict
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS, columns=names if columns is None else list(columns)):
            for row in batch.to_pylist():
                number += 1
                try:
                    yield Record(source=str(path), line=number, data=fields(row))
                except ValueError as error:
                    yield Record(source=str(path), line=number, data=None, raw=str(row), problem=str(error))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is damaged after row {number}: {error}; write it again") from error
