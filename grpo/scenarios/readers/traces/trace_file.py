"""Files of exported traces: JSON lines, a JSON document, or a table with one entry in each row.

The pages of Langfuse, LangSmith and Braintrust export tables as CSV, and clients such as Phoenix's save Parquet. The
cells of a table have objects and lists as JSON. Langfuse writes texts as JSON too, in quotes. The id of an entry shows
that, because no id has quotes of its own:

    id,input              {"id": "t1", "input": "Hi."}
    t1,Hi.
    \"""t1\""",\"""Hi.\"""      the same
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.parquet_rows import ParquetRows
from grpo.scenarios.readers.exports.record_file import read_objects
from grpo.scenarios.readers.files.arrow_file import ArrowFile
from grpo.scenarios.readers.files.csv_file import read_cells
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.readers.files.places import without_nulls
from grpo.scenarios.readers.files.source_files import TABLES, data_suffix
from grpo.scenarios.records import SourceRecord, convert_record

_IDS = ("id", "trace_id", "traceId")
_BLANK = ("", "null", "[]", "{}")


def read_entries(path: Path) -> Iterator[SourceRecord]:
    """Read the entries of an export of traces, one record per row, line or item of a document."""
    kind = TABLES.get(data_suffix(path))
    if kind is None:
        yield from read_objects(path)
        return
    if kind == "csv":
        rows = read_cells(path, required=())
    elif kind == "parquet":
        rows = read_parquet(path, columns=ParquetRows(path).names)
    else:
        rows = ArrowFile(path).read(cells=True)
    for row in rows:
        yield convert_record(row, _entry)


def _entry(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an entry. Blank cells are left out, as they would be in JSON."""
    is_quoted = any(isinstance(_unquoted(cells.get(name)), str) for name in _IDS)
    values = {name: without_nulls(cell) for name, cell in cells.items()}
    if is_quoted:
        values = {name: cell if (text := _unquoted(cell)) is None else text for name, cell in values.items()}
    return {name: cell for name, cell in values.items() if cell is not None and cell not in _BLANK}


def _unquoted(cell: Any) -> str | None:
    """Text of a cell that is a text in JSON. None for every other cell."""
    if not isinstance(cell, str) or not cell.startswith('"'):
        return None
    try:
        value = from_json(cell, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
