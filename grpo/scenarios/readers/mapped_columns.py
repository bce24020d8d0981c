"""Fields of a scenario from the columns of a table that are mapped to them.

columns: {id: ticket, user_responses: question, "metadata.category": topic}

ticket 17, question "Where is my parcel?", topic "delivery", agent "Ann"
→ id "17", user_responses ["Where is my parcel?"], metadata {category: "delivery"}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.config.scenarios import FileSource
from grpo.errors import DataError
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.readers.arrow import ParquetRows
from grpo.scenarios.readers.csv_file import read_cells
from grpo.scenarios.readers.json_file import read_json, read_jsonl
from grpo.scenarios.readers.parquet import read_parquet
from grpo.scenarios.records import SourceRecord, convert_record, record_name
from grpo.scenarios.scenario import Expected, Metadata, Scenario

_TEXTS = ("user_responses", "expected.responses", "expected.facts", "expected.assertions")
"""Fields that are lists of texts: a text that is not a JSON list is a list of one."""
_OBJECTS = (
    "tools",
    "world",
    "expected",
    "metadata",
    "expected.calls",
    "expected.state",
    "expected.required_documents",
    "expected.reward_basis",
)
"""Fields that are given as JSON where they are given as text."""
_FIELDS = {
    *Scenario.model_fields,
    *(f"expected.{name}" for name in Expected.model_fields),
    *(f"metadata.{name}" for name in Metadata.model_fields),
}
_SHOWN = 300  # characters of a list of columns


def read_columns(source: FileSource, path: Path) -> Iterator[SourceRecord]:
    """Read a file with mapped columns.

    Raises `DataError` for an unknown field, for a table without a mapped column, and as the reader of its format.
    """
    check_columns(path, source.columns)
    if source.kind == "parquet":
        check_columns(path, source.columns, ParquetRows(path).names)
        records = read_parquet(path, columns=sorted(set(source.columns.values())))
    elif source.kind == "csv":
        records = read_cells(path, required=sorted(set(source.columns.values())))
    else:
        records = (read_jsonl if source.kind == "jsonl" else read_json)(path)
    return map_columns(path, records, source.columns)


def check_columns(path: Path, mapped: Mapping[str, str], present: Sequence[str] | None = None) -> None:
    """Raise `DataError` for a field that no scenario has, and for a mapped column that is not among those present."""
    if unknown := [name for name in mapped if name not in _FIELDS]:
        raise DataError(
            f"{path}: columns has {unknown[0]}, which is not a field of a scenario; fields are "
            f"{', '.join(sorted(_FIELDS))}"
        )
    missing = [] if present is None else [column for column in mapped.values() if column not in present]
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(missing)}; it has {excerpt(', '.join(present or ()), _SHOWN)}; "
            "correct the source's columns"
        )


def map_columns(path: Path, records: Iterable[SourceRecord], mapped: Mapping[str, str]) -> Iterator[SourceRecord]:
    """Replace the data of each record, cells by column, by the fields that are mapped; empty cells are left out.

    A record without an id is named by its file, place and digest. One that lacks a column has a problem.
    """
    for record in records:
        yield convert_record(record, partial(_fields, record_name(path, record), mapped))


def _fields(name: str, mapped: Mapping[str, str], cells: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field, column in mapped.items():
        if column not in cells:
            raise ValueError(f"no column {column}: the record has {excerpt(', '.join(cells), _SHOWN) or 'none'}")
        if cells[column] is None or cells[column] == "":
            continue
        section, _, inner = field.partition(".")
        value = _value(field, column, cells[column])
        if inner:
            fields.setdefault(section, {})[inner] = value
        else:
            fields[section] = {**value, **fields.get(section, {})} if isinstance(value, dict) else value
    return {"id": name, **fields}


def _value(field: str, column: str, cell: Any) -> Any:
    """Value of a cell in the type of its field."""
    if field in _TEXTS:
        return _texts(cell)
    if field in _OBJECTS:
        if not isinstance(cell, str):
            return cell
        try:
            return from_json(cell, allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"column {column} is not JSON: {str(error).replace('line 1 ', '')}") from error
    return str(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else cell


def _texts(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else [str(cell)]
    if cell.lstrip().startswith("["):
        try:
            value = from_json(cell, allow_inf_nan=False)
        except ValueError:
            return [cell]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return [cell]
