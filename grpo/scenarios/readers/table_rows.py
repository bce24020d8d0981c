"""Scenarios from the rows of a table: mapped columns, a chat in each row, or a message in each row.

columns     the cells are the fields of a scenario
chat        one or several cells are a chat: messages, tools, system prompt
messages    a row is one message of a conversation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo.config.chats import ChatColumns
from grpo.config.csv_format import DETECTED, CsvFormat
from grpo.config.scenarios import CsvSource, FileSource, HubDataSource, HuggingFaceSource
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.readers.chat_records import convert_chats
from grpo.scenarios.readers.files.arrow_file import ArrowFile
from grpo.scenarios.readers.files.csv_file import read_cells, read_csv
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.files.json_file import read_json, read_jsonl
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.readers.files.places import without_nulls
from grpo.scenarios.readers.mapped_columns import check_fields, check_present, map_cells, map_columns, merge_fields
from grpo.scenarios.readers.message_rows import read_message_rows
from grpo.scenarios.records import SourceRecord, convert_record

_FIRST_KEYS = {"alpaca": "instruction", "prompt_completion": "prompt"}
"""Key that every record of a format has."""

TableSource = FileSource | CsvSource | HuggingFaceSource | HubDataSource


def read_table_file(source: TableSource, kind: str, path: Path, csv: CsvFormat = DETECTED) -> Iterator[SourceRecord]:
    """Read a file of this kind by the settings of its source.

    Raises `DataError` if a field is unknown or the table lacks a wanted column, and otherwise like the reader of its
    format.
    """
    if not is_plain(source):
        return interpret(source, path, read_table_cells(source, kind, path, csv))
    if kind == "parquet":
        return read_parquet(path)
    if kind == "arrow":
        return ArrowFile(path).read()
    if kind == "csv":
        return read_csv(path, csv)
    return map(_plain, _read_json(source, kind, path))


def read_table_cells(source: TableSource, kind: str, path: Path, csv: CsvFormat = DETECTED) -> Iterator[SourceRecord]:
    """Read the rows of a file with their cells by column. The columns that the source wants must be there."""
    wanted = wanted_columns(source)
    if kind == "parquet":
        names = ParquetRows(path).names
        check_present(path, wanted, names)
        whole = source.chat is not None or source.messages is not None
        return read_parquet(path, columns=names if whole else wanted)
    if kind == "arrow":
        file = ArrowFile(path)
        check_present(path, wanted, file.names)
        return file.read(cells=True)
    if kind == "csv":
        return read_cells(path, csv, required=wanted)
    return _read_json(source, kind, path)


def _read_json(source: TableSource, kind: str, path: Path) -> Iterator[SourceRecord]:
    return read_jsonl(path) if kind == "jsonl" else read_json(path, getattr(source, "records", None))


def _plain(record: SourceRecord) -> SourceRecord:
    """Record of a JSON file whose fields are the fields of a scenario."""
    return record if record.data is None else replace(record, data=without_filled_nulls(record.data))


def is_plain(source: TableSource) -> bool:
    """Return True if columns have the names of the fields of a scenario."""
    return not source.columns and source.chat is None and source.messages is None


def wanted_columns(source: TableSource) -> list[str]:
    """Columns that a table must have. A place with dots may be in an object, so that each row is checked instead."""
    wanted = set(source.columns.values())
    if source.chat is not None:
        keys = source.chat.names
        first = _FIRST_KEYS.get(source.chat.format)
        wanted |= {keys.get(first, first)} if first else {source.chat.column} if source.chat.column else set()
    if source.messages is not None:
        wanted |= {
            name
            for name in (*source.messages.places, *source.messages.where, *source.messages.without)
            if "." not in name
        }
    return sorted(wanted)


def interpret(source: TableSource, path: Path, records: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
    """Convert records with cells by column to scenarios. Raises `DataError` if a field is not one of a scenario."""
    check_fields(path, source.columns)
    if source.messages is not None:
        return read_message_rows(records, path, source.messages, source.columns)
    if source.chat is not None:
        return _read_chats(records, path, source.chat, source.columns)
    return map_columns(path, records, source.columns)


def _read_chats(
    records: Iterable[SourceRecord], path: Path, chat: ChatColumns, columns: dict[str, str]
) -> Iterator[SourceRecord]:
    """Chats of the rows, with the fields of the mapped columns."""
    beside = {*columns.values()} - {chat.column, *chat.names.values()}
    for record in records:
        cells = record.data
        if cells is None:
            yield record
            continue

        def in_chat(data: dict[str, Any]) -> dict[str, Any]:
            return {name: without_nulls(cell) for name, cell in data.items() if name not in beside}

        (converted,) = convert_chats([convert_record(record, in_chat)], path, chat)

        def with_columns(fields: dict[str, Any], cells: dict[str, Any] = cells) -> dict[str, Any]:
            return merge_fields(fields, map_cells(columns, cells))

        yield convert_record(converted, with_columns)
