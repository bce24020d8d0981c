"""Files of logged objects: JSON lines, or a JSON document with one object or a list of objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
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

    The file is read as lines if its name says `.jsonl` or `.ndjson`. A file `.json` is read as lines if its first line
    is an object and another line follows, and a file of any other name unless it begins like a document. Blank lines do
    not count. The `line` of a record is its line, or in a document its number.

    Raises `DataError` if a document is broken or over 64 MiB.
    """
    if records is None and (data_suffix(path) in _LINES or _has_lines(path)):
        yield from read_jsonl(path)
        return
    document = read_document(path)
    items = document_items(path, document, records)
    yield from item_records(path, [document] if items is None else [_as_object(item) for item in items])


def _has_lines(path: Path) -> bool:
    with open_json(path) as file:
        lines = (line for line in iter(partial(file.readline, LONGEST_LINE), b"") if line.strip())
        first = next(lines, b"")
        if data_suffix(path) == ".json" or isinstance(_value(first), dict):
            return isinstance(_value(first), dict) and next(lines, None) is not None
        return not first.lstrip().startswith((b"[", b"{"))


def _as_object(item: Any) -> Any:
    """A chat that is only its list of messages, as an object."""
    is_chat = isinstance(item, list) and bool(item) and all(isinstance(message, dict) for message in item)
    return {"messages": item} if is_chat else item


def _value(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None
