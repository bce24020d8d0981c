"""Fields of a scenario from the row of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo.data_errors import error_text, excerpt, try_call
from grpo.parquet_rows import ArrowRow
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.records import SourceRecord

NESTED = ("user_responses", "tools", "world", "expected", "metadata")


Fields = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Fields of a record from the cells of a row."""


def row_record(path: Path, row: ArrowRow, fields: Fields | None = None) -> SourceRecord:
    """A row as a record, with the fields that `fields` reads. If the row cannot be decoded, it has a problem."""
    data = try_call(lambda: (fields or to_fields)(row.cells))
    problem = row.problem or (error_text(data) if isinstance(data, Exception) else None)
    if problem is None and not isinstance(data, Exception):
        return SourceRecord(source=str(path), line=row.number, data=data)
    return SourceRecord(source=str(path), line=row.number, data=None, raw=excerpt(row.cells), problem=problem)


def to_fields(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out empty cells, and read nested fields that are given as JSON text.

        {"id": "a", "topic": None, "user_responses": '["Hi."]'}  →  {"id": "a", "user_responses": ["Hi."]}

    If the text of such a column is not JSON, raises `ValueError` that names the column.
    """
    fields = {name: cell for name, cell in cells.items() if cell is not None and cell != ""}
    for name in NESTED:
        if isinstance(fields.get(name), str):
            fields[name] = cell_value(fields[name], f"column {name} is")
    return without_filled_nulls(fields)
