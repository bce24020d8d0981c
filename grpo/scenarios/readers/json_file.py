"""A JSON document: a list of records, or an object that holds it under `scenarios`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpo.errors import DataError
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.readers.source_files import read_document


def read_json(path: Path) -> Iterator[SourceRecord]:
    """Read the records of a JSON document, which is bounded in size; `line` is the record's number.

    Raises `DataError` where the document is broken or holds no list of records.
    """
    document = read_document(path)
    items = document.get("scenarios") if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise DataError(f'{path} holds no records; expected a list, or an object with a list under "scenarios"')
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield SourceRecord(source=str(path), line=number, data=item)
        else:
            problem = f"not an object: {type(item).__name__}"
            yield SourceRecord(source=str(path), line=number, data=None, raw=excerpt(item), problem=problem)
