"""Files of logged objects: JSON lines, or a JSON document with one object or a list of objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.data_errors import LONGEST_LINE
from grpo.scenarios.readers.json_file import item_records, read_jsonl
from grpo.scenarios.readers.source_files import open_source, read_document
from grpo.scenarios.records import SourceRecord


def read_objects(path: Path) -> Iterator[SourceRecord]:
    """Read JSON lines, or a JSON document.

    The file is read as a document if its name ends in `.json` and its first line is not an object by itself. The `line`
    of a record is its line, or in a document its number. Raises `DataError` if a document is broken or over 64 MiB.
    """
    if path.suffix != ".json" or _begins_with_an_object(path):
        yield from read_jsonl(path)
        return
    document = read_document(path)
    yield from item_records(path, document if isinstance(document, list) else [document])


def _begins_with_an_object(path: Path) -> bool:
    with open_source(path) as file:
        return isinstance(_value(file.readline(LONGEST_LINE).removeprefix(b"\xef\xbb\xbf")), dict)


def _value(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None
