"""Rows of Arrow batches, and of Parquet files, which are checked against their footers.

    a cell that cannot be decoded (text that is not UTF-8, an impossible date)    the row has a problem
    a row of more than 16 MiB                                                      the row has a problem
    a damaged page, or more or fewer rows than the footer declares                 `DataError`
    a column chunk that expands to more than 1 GiB                                 `DataError`, before it is read
    over 2,000,000 rows, and more than four for each byte of the file              `DataError`, before a row is made
    rows of over 4 GiB, and over 1,000 times the size of the file                  `DataError`, before a row is made

Dictionaries are not expanded, so that 1,000,000 rows that repeat a text of 16 MiB take 16 MiB and not 16 TiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grpo.data_errors import LONGEST_LINE, check_columns, error_text, try_call
from grpo.errors import DataError
from grpo.parquet_footer import read_footer
from grpo.tables import open_parquet

BATCH_ROWS = 512
LARGEST_CHUNK = 2**30  # bytes of a column chunk once decompressed
MOST_VALUES = 2**26  # of a column chunk, because a value that repeats takes no space in a file
ROWS_ALWAYS_READ = 2_000_000
"""Rows that a file of any size may have. In a larger one four rows may share a byte: a million labels of a few kinds
take 390 kB."""
BYTES_ALWAYS_READ = 4 * 2**30
MOST_TIMES = 1000
"""Rows of more than `BYTES_ALWAYS_READ` in all may have this many times the size of their file. 100,000 rows that share
a prompt of 31 kB have 5,600 times its size, and 3 GB."""
_LARGEST_BATCH = 64 * 2**20  # bytes, above which a batch is converted row by row

_passed: set[tuple[tuple[str, int, int], ...]] = set()
"""Sizes and times of the files that `check_rows` has passed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRow:
    """One row. If `problem` is set, `cells` has only the cells that could be decoded."""

    number: int
    cells: dict[str, Any]
    problem: str | None = None


class RowBudget:
    """Rows and bytes that may be read of a file or folder, because a value that repeats takes no space in it."""

    def __init__(self, path: Path) -> None:
        files = path.rglob("*") if path.is_dir() else (path,)
        size = sum(file.stat().st_size for file in files)
        self._path = path
        self._rows, self._bytes = max(ROWS_ALWAYS_READ, 4 * size), max(BYTES_ALWAYS_READ, MOST_TIMES * size)

    def take_rows(self, count: int) -> None:
        """Count rows. Raises `DataError` if there are too many."""
        self._rows -= count
        if self._rows < 0:
            raise DataError(
                f"{self._path} has over {ROWS_ALWAYS_READ} rows and over four for each byte, so that most of them are "
                "empty or the same. Write it again without them"
            )

    def take_bytes(self, count: int) -> None:
        """Count bytes of rows. Raises `DataError` if there are too many."""
        self._bytes -= count
        if self._bytes < 0:
            raise DataError(
                f"{self._path} holds rows of over {BYTES_ALWAYS_READ >> 30} GiB and over {MOST_TIMES} times its own "
                "size. If you trust it, write it without compression and dictionaries"
            )


def check_rows(
    path: Path, batches: Callable[[], Iterator[pa.RecordBatch | pa.Table]], *, is_mapped: bool = False
) -> None:
    """Raise `DataError` if the rows of all batches exceed the budget of their file or folder.

    It is called before the first row is made, because 4 GiB of rows keep an ingestion busy for minutes. Lengths are
    summed without expanding a dictionary, which takes a second for 200,000 rows. A file that has passed is not checked
    again until it changes. Batches after a damaged one do not count, because reading ends there.
    """
    files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    state = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    if state in _passed:
        return
    budget = RowBudget(path)
    remaining = try_call(batches)
    while not isinstance(remaining, Exception):
        batch = try_call(partial(next, remaining, None))
        if batch is None or isinstance(batch, Exception):
            break
        budget.take_rows(batch.num_rows)
        budget.take_bytes(_most_bytes(batch, is_mapped=is_mapped))
    _passed.add(state)


class ParquetRows:
    """Rows of a Parquet file.

    Raises `DataError` if the file is missing or truncated, or if its footer contradicts itself or exceeds the limits.
    """

    def __init__(self, path: Path, *, largest_chunk: int = LARGEST_CHUNK, most_values: int = MOST_VALUES) -> None:
        self._path = path
        file = open_parquet(path)
        check_columns(path, file.metadata.num_columns)
        footer = try_call(lambda: read_footer(path))
        if isinstance(footer, Exception):
            raise DataError(f"{path} has a damaged footer: {error_text(footer)}. Write it again") from footer
        self._footer = footer
        self._texts = self._intact(lambda: _texts(file.metadata.schema), 0)
        self.schema: pa.Schema = self._intact(lambda: file.schema_arrow, 0)
        self.names: list[str] = self._intact(lambda: self.schema.names, 0)
        self._check(largest_chunk, most_values)

    def read(self, columns: Sequence[str]) -> Iterator[ArrowRow]:
        """Read the rows in order. If the file is damaged, the rows before the damage come first, then `DataError`."""
        check_rows(self._path, partial(self._all_batches, columns))
        number = 0
        for index, group in enumerate(self._footer.groups):
            start = number
            batches = self._intact(partial(self._batches, index, columns), number)
            while (batch := self._intact(partial(next, batches, None), number)) is not None:
                yield from batch_rows(batch, number, self.schema)
                number += batch.num_rows
            if number - start != group.rows:
                raise DataError(
                    f"{self._path} is damaged: its footer claims {group.rows} rows for row group {index}, which holds "
                    f"{number - start}. Write it again"
                )

    def _all_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for index in range(len(self._footer.groups)):
            yield from self._batches(index, columns)

    def _batches(self, index: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        chunks = self._footer.groups[index].chunks
        texts = [chunk.path for chunk in chunks if chunk.dictionary and chunk.path in self._texts]
        rows = 1 if any(chunk.prefixes for chunk in chunks) else BATCH_ROWS
        file = pq.ParquetFile(self._path, read_dictionary=texts, page_checksum_verification=True)
        return iter(file.iter_batches(batch_size=rows, row_groups=[index], columns=columns))

    def _check(self, largest_chunk: int, most_values: int) -> None:
        total = sum(group.rows for group in self._footer.groups)
        if total != self._footer.rows:
            raise DataError(
                f"{self._path} is damaged: its footer claims {self._footer.rows} rows, its row groups {total}. "
                "Write it again"
            )
        RowBudget(self._path).take_rows(total)
        for chunk in (chunk for group in self._footer.groups for chunk in group.chunks):
            if chunk.uncompressed > largest_chunk or chunk.values > most_values:
                raise DataError(
                    f"{self._path}: column {chunk.path} has {chunk.values} values of {chunk.uncompressed} bytes in one "
                    f"row group, at most {most_values} of {largest_chunk} are read. Write it with smaller row groups"
                )

    def _intact(self, read: Callable[[], T], number: int) -> T:
        value = try_call(read)
        if not isinstance(value, Exception):
            return value
        if isinstance(value, DataError):
            raise value
        place = f"after row {number} of {self._footer.rows}"
        raise DataError(f"{self._path} is damaged {place}: {error_text(value)}. Write it again") from value


def batch_rows(batch: pa.RecordBatch | pa.Table, before: int, schema: pa.Schema) -> Iterator[ArrowRow]:
    """Rows of a batch, numbered from `before` + 1. `schema` has its columns without dictionaries."""
    size = try_call(lambda: _expanded(batch))
    rows: Any = size
    if isinstance(size, int) and size <= _LARGEST_BATCH:
        # without dictionaries, which take six times as long
        rows = try_call(lambda: _plain(batch, schema).to_pylist(maps_as_pydicts="lossy"))
    if isinstance(rows, list):
        changed = [field.name for field in schema if field.name in batch.schema.names and _is_changed(field.type)]
        for number, cells in enumerate(rows, start=before + 1):
            yield ArrowRow(number=number, cells={**cells, **{name: _cell(cells[name]) for name in changed}})
        return
    for index in range(batch.num_rows):
        yield _row(batch.slice(index, 1), before + 1 + index)


def _plain(batch: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.RecordBatch | pa.Table:
    return batch.cast(pa.schema([schema.field(name) for name in batch.schema.names]))


def _row(row: pa.RecordBatch | pa.Table, number: int) -> ArrowRow:
    size = try_call(lambda: _expanded(row))
    if isinstance(size, Exception):
        return ArrowRow(number=number, cells={}, problem=f"row cannot be decoded: {error_text(size)}")
    if size > LONGEST_LINE:
        return ArrowRow(number=number, cells={}, problem=f"over-long row: {size} bytes, at most {LONGEST_LINE}")
    cells = {
        name: try_call(partial(column[0].as_py, maps_as_pydicts="lossy"))
        for name, column in zip(row.schema.names, row.columns, strict=True)
    }
    errors = {name: cell for name, cell in cells.items() if isinstance(cell, Exception)}
    problem = "; ".join(f"{name}: {error_text(error)}" for name, error in errors.items())
    return ArrowRow(
        number=number,
        cells={name: _cell(cell) for name, cell in cells.items() if name not in errors},
        problem=f"column cannot be decoded: {problem}" if errors else None,
    )


def _is_changed(kind: pa.DataType) -> bool:
    """True if `_cell` may change cells of this type."""
    return bool(pa.types.is_floating(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _cell(value: Any) -> Any:
    """A cell. NaN is null, because pandas writes nulls so. Bytes in UTF-8 are text, which some writers do not mark."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if not isinstance(value, bytes):
        return value
    text = try_call(value.decode)
    return value if isinstance(text, Exception) else text


def _expanded(rows: pa.RecordBatch | pa.Table) -> int:
    """Bytes of the values, with each use of a dictionary's value counted.

    Raises `IndexError` if an index is outside the dictionary, because decoding it would read foreign memory.
    """
    return sum(_bytes(chunk) for column in rows.columns for chunk in getattr(column, "chunks", [column]))


def is_valid(rows: pa.RecordBatch | pa.Table) -> bool:
    """True unless rows that are mapped from a file have a damaged offset, with which Arrow would read other memory."""
    return not isinstance(try_call(partial(rows.validate, full=True)), Exception)


def _most_bytes(rows: pa.RecordBatch | pa.Table, *, is_mapped: bool) -> int:
    """Bytes of the values, or an upper bound of them if the rows are damaged."""
    size = try_call(lambda: _expanded(rows)) if not is_mapped or is_valid(rows) else None
    if isinstance(size, int):
        return size
    chunks = [chunk for column in rows.columns for chunk in getattr(column, "chunks", [column])]
    return sum(chunk.get_total_buffer_size() + len(chunk) * _dictionary_bytes(chunk) for chunk in chunks)


def _dictionary_bytes(array: pa.Array) -> int:
    """Bytes of the dictionaries, without a look at the offsets, which may be damaged."""
    if isinstance(array, pa.DictionaryArray):
        return int(array.dictionary.get_total_buffer_size())
    if isinstance(array, pa.StructArray):
        return sum(_dictionary_bytes(array.field(index)) for index in range(array.type.num_fields))
    nested = isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray))
    return _dictionary_bytes(array.values) if nested else 0


def _bytes(array: pa.Array) -> int:
    if isinstance(array, pa.DictionaryArray):
        lengths = pc.take(pc.binary_length(array.dictionary), array.indices)
        return len(array) + (pc.sum(lengths).as_py() or 0)
    if isinstance(array, pa.StructArray):
        return len(array) + sum(map(_bytes, array.flatten()))
    if isinstance(array, pa.MapArray):  # it is a list array as well, but pyarrow cannot flatten it
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        array = pa.ListArray.from_arrays(array.offsets, entries)
    if isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return len(array) + _bytes(array.flatten())
    return len(array) + array.nbytes


def _texts(schema: pq.ParquetSchema) -> set[str]:
    """Paths of the text columns."""
    leaves = (schema.column(k) for k in range(len(schema)))
    return {leaf.path for leaf in leaves if leaf.logical_type.type == "STRING"}
