"""Arrow's IPC format, as a file (Feather) or a stream: the rows of the batches, which are validated first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from grpo.data_errors import check_columns, error_text, try_call
from grpo.errors import DataError
from grpo.parquet_rows import ArrowRow, batch_rows, check_rows, is_valid
from grpo.scenarios.readers.files.row_fields import row_record
from grpo.scenarios.readers.files.source_files import open_source
from grpo.scenarios.records import SourceRecord

_MAGIC = b"ARROW1"


class ArrowFile:
    """A file of record batches. Raises `DataError` if it is missing, or not in Arrow's format."""

    def __init__(self, path: Path) -> None:
        with open_source(path) as file:
            self._is_file = file.read(len(_MAGIC)) == _MAGIC
        self._path = path
        schema = try_call(lambda: self._open().schema)
        if isinstance(schema, Exception):
            raise DataError(
                f"{path} is not a file of Arrow's IPC format: {error_text(schema)}. Write it again"
            ) from schema
        check_columns(path, len(schema.names))
        self.names: list[str] = schema.names

    def read(self, *, cells: bool = False) -> Iterator[SourceRecord]:
        """Read the rows as fields of scenarios, or as their cells by column.

        If the file is damaged, the rows before the damage come first, then `DataError`.
        """
        check_rows(self._path, self._batches, is_mapped=True)
        number = 0
        batches = self._batches()
        while (batch := try_call(partial(next, batches, None))) is not None:
            if isinstance(batch, Exception):
                raise DataError(f"{self._path} is damaged after row {number}: {error_text(batch)}. Write it again")
            for row in validated_rows(batch, number):
                yield row_record(self._path, row, dict if cells else None)
            number += batch.num_rows

    def _open(self) -> Any:
        source = pa.memory_map(str(self._path))
        return pa.ipc.open_file(source) if self._is_file else pa.ipc.open_stream(source)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        reader = self._open()
        if not self._is_file:
            yield from reader
            return
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def validated_rows(table: pa.RecordBatch | pa.Table, before: int) -> Iterator[ArrowRow]:
    """Rows of a table that is mapped from a file, validated first, because a damaged offset would read other memory."""
    if is_valid(table):
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
