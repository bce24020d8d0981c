"""JSON: lines with one record each, or a document with a list of records.

[{…}, {…}]                                        the list
{"scenarios": [{…}]}                              the list under `scenarios`
{"results": {"rows": [{…}]}}                      the list that the setting `records` names: results.rows
{"columns": ["a", "b"], "data": [[1, 2], …]}      a table, as W&B and pandas (`orient="split"`) write it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from grpo.data_errors import (
    LONGEST_LINE,
    MOST_COLUMNS,
    MOST_CONTAINERS,
    excerpt,
    has_crowded_object,
    has_more_containers,
)
from grpo.errors import DataError
from grpo.scenarios.readers.files.places import value_at
from grpo.scenarios.readers.files.source_files import open_json, read_document
from grpo.scenarios.records import SourceRecord

_SHOWN = 300  # characters of a list of keys


def read_json(path: Path, records: str | None = None) -> Iterator[SourceRecord]:
    """Read the records of a JSON document of bounded size. `records` is the place of their list, with dots.

    A record's `line` is its number. Raises `DataError` if the document is broken or has no list of records.
    """
    items = document_items(path, read_document(path), records)
    if items is None:
        raise DataError(
            f'{path} holds no records. Expected a list, or an object with a list under "scenarios". If the '
            "list has another key, name the key in the source's records"
        )
    yield from item_records(path, items)


def document_items(path: Path, document: Any, records: str | None) -> list[Any] | None:
    """Records of a document, see the module. None if `records` is None and the document has another form.

    Raises `DataError` if the document has no list at `records`, or if a table has two columns of one name.
    """
    if records is not None:
        return _list_at(path, document, records)
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    columns, rows = document.get("columns"), document.get("data")
    if isinstance(columns, list) and isinstance(rows, list) and _is_table(columns, rows):
        if twice := sorted(name for name, count in Counter(columns).items() if count > 1):
            raise DataError(f"{path} names the column {excerpt(twice[0])} twice. Rename one of them")
        return [dict(zip(columns, row, strict=True)) if len(row) == len(columns) else row for row in rows]
    return document["scenarios"] if isinstance(document.get("scenarios"), list) else None


def _is_table(columns: list[Any], rows: list[Any]) -> bool:
    return all(isinstance(name, str) for name in columns) and all(isinstance(row, list) for row in rows)


def _list_at(path: Path, document: Any, records: str) -> list[Any]:
    value = value_at(document, records) if isinstance(document, dict) else None
    if value is None:
        present = ", ".join(document) if isinstance(document, dict) else f"a {type(document).__name__}"
        raise DataError(f"{path} has nothing at records: {records}. It has {excerpt(present, _SHOWN)}")
    if not isinstance(value, list):
        raise DataError(f"{path}: records: {records} is not a list, but a {type(value).__name__}")
    return value


def item_records(path: Path, items: Sequence[Any]) -> Iterator[SourceRecord]:
    """Items of a document as numbered records. If an item is not an object, its record has a problem."""
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict) and len(item) > MOST_COLUMNS:
            problem = f"too many keys: more than {MOST_COLUMNS}"
            yield SourceRecord(source=str(path), line=number, data=None, raw=excerpt(item), problem=problem)
        elif isinstance(item, dict):
            yield SourceRecord(source=str(path), line=number, data=item)
        else:
            problem = f"not an object: {type(item).__name__}"
            yield SourceRecord(source=str(path), line=number, data=None, raw=excerpt(item), problem=problem)


def read_jsonl(path: Path) -> Iterator[SourceRecord]:
    """Read a JSON-lines file. If a line is not a JSON object in UTF-8, its record has a problem.

    Blank lines are skipped. A byte order mark and CRLF are tolerated. A compressed file is unpacked.

    Raises `DataError` if the file is missing, or if it is compressed and damaged.
    """
    with open_json(path) as file:
        yield from _records(str(path), file)


def _records(source: str, file: IO[bytes]) -> Iterator[SourceRecord]:
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            _skip_line(file)
            yield SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem="over-long line")
        elif line.strip():
            yield _record(source, number, line)


def _record(source: str, number: int, line: bytes) -> SourceRecord:
    if has_more_containers(line, MOST_CONTAINERS):
        problem = f"too many lists and objects: more than {MOST_CONTAINERS}"
        return SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem=problem)
    if has_crowded_object(line):
        problem = f"too many keys: more than {MOST_COLUMNS}"
        return SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem=problem)
    try:
        raw = line.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start}"
        return SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem=problem)
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        problem = f"broken JSON: {str(error).replace('line 1 ', '')}"
        return SourceRecord(source=source, line=number, data=None, raw=raw, problem=problem)
    if not isinstance(data, dict):
        problem = f"not an object: {type(data).__name__}"
        return SourceRecord(source=source, line=number, data=None, raw=raw, problem=problem)
    if len(data) > MOST_COLUMNS:
        problem = f"too many keys: more than {MOST_COLUMNS}"
        return SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem=problem)
    return SourceRecord(source=source, line=number, data=data, raw=raw)


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
        pass


def _decode(line: bytes) -> str:
    return line[:2000].decode(errors="replace")
