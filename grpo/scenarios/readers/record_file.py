"""Files of logged objects: JSON lines, or a JSON document with one object or a list of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.data_errors import LONGEST_LINE
from grpo.scenarios.readers.json_file import document_items, item_records, read_jsonl
from grpo.scenarios.readers.source_files import data_suffix, open_json, read_document
from grpo.scenarios.records import SourceRecord

_LINES = (".jsonl", ".ndjson")


def read_objects(path: Path, records: str | None = None) -> Iterator[SourceRecord]:
    """Read JSON lines, or a JSON document. `records` is the place of the list of records in a document.

    The file is read as lines if its name says `.jsonl` or `.ndjson`, or if its first line is an object and another line
    follows. The `line` of a record is its line, or in a document its number. Raises `DataError` if a
    document is broken or over 64 MiB.
    """
    if records is None and (data_suffix(path) in _LINES or _has_an_object_a_line(path)):
        yield from read_jsonl(path)
        return
    document = read_document(path)
    items = document_items(path, document, records)
    yield from item_records(path, [document] if items is None else [_as_object(item) for item in items])


def _has_an_object_a_line(path: Path) -> bool:
    with open_json(path) as file:
        return isinstance(_value(file.readline(LONGEST_LINE)), dict) and bool(file.readline(LONGEST_LINE).strip())


def _as_object(item: Any) -> Any:
    """A chat that is only its list of messages, as an object."""
    is_chat = isinstance(item, list) and bool(item) and all(isinstance(message, dict) for message in item)
    return {"messages": item} if is_chat else item


def _value(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None
