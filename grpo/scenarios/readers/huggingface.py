"""Datasets that the `datasets` library saved to a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from grpo.errors import DataError
from grpo.scenarios.data_errors import error_text, try_call
from grpo.scenarios.readers.arrow import BATCH_ROWS, ArrowRow, batch_rows
from grpo.scenarios.readers.mapped_columns import check_columns, map_columns
from grpo.scenarios.readers.row_fields import Fields, row_record
from grpo.scenarios.records import SourceRecord


def read_huggingface(path: Path, split: str, *, columns: Mapping[str, str] | None = None) -> Iterator[SourceRecord]:
    """Read a folder of `save_to_disk`, without network; `split` is used where the folder holds several.

    With `columns` fields are read from the columns that are mapped to them. Raises `DataError` for a folder that is
    missing, damaged or not a saved dataset, and for a missing split or column.
    """
    import datasets

    dataset = try_call(lambda: datasets.load_from_disk(str(path)))
    if isinstance(dataset, Exception):
        raise DataError(
            f"{path} holds no saved dataset: {error_text(dataset)}; write it with Dataset.save_to_disk and give that "
            "folder"
        ) from dataset
    if isinstance(dataset, datasets.DatasetDict):
        if split not in dataset:
            raise DataError(f"{path} has no split {split!r}, only {', '.join(dataset)}; correct the source's split")
        dataset = dataset[split]
    if columns:
        check_columns(path, columns, dataset.column_names)
        yield from map_columns(path, _records(path, dataset, fields=dict), columns)
    else:
        yield from _records(path, dataset, fields=None)


def _records(path: Path, dataset: Any, fields: Fields | None) -> Iterator[SourceRecord]:
    claimed, number = len(dataset), 0
    for table in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
        for row in _rows(table, number):
            yield row_record(path, row, fields)
        number += table.num_rows
    if number != claimed:
        raise DataError(f"{path} is damaged: it claims {claimed} rows and holds {number}; save the dataset again")


def _rows(table: Any, before: int) -> Iterator[ArrowRow]:
    """Rows of a table that is mapped from a file as it is: a damaged offset would be read from foreign memory."""
    if not isinstance(try_call(partial(table.validate, full=True)), Exception):
        yield from batch_rows(table, before, table.schema)
        return
    for index in range(table.num_rows):
        row = table.slice(index, 1)
        error = try_call(partial(row.validate, full=True))
        if isinstance(error, Exception):
            problem = f"row cannot be decoded: {error_text(error)}"
            yield ArrowRow(number=before + index + 1, cells={}, problem=problem)
        else:
            yield from batch_rows(row, before + index, row.schema)
