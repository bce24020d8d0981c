"""JSON: lines with one record each, or a document with a list of records."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from grpo.data_errors import LONGEST_LINE, excerpt
from grpo.errors import DataError
from grpo.scenarios.readers.source_files import open_source, open_text, read_document
from grpo.scenarios.records import SourceRecord

_BOM = b"\xef\xbb\xbf"


def read_json(path: Path) -> Iterator[SourceRecord]:
    """Read the records of a JSON document of bounded size: a list, or an object with a list under `scenarios`.

    A record's `line` is its number. Raises `DataError` if the document is broken or has no list of records.
    """
    document = read_document(path)
    items = document.get("scenarios") if isinstance(document, dict) else document
    if not isinstance(items, list):
        raise DataError(f'{path} holds no records. Expected a list, or an object with a list under "scenarios"')
    yield from item_records(path, items)


def item_records(path: Path, items: Sequence[Any]) -> Iterator[SourceRecord]:
    """Items of a document as numbered records. If an item is not an object, its record has a problem."""
    for number, item in enumerate(items, start=1):
        if isinstance(item, dict):
            yield SourceRecord(source=str(path), line=number, data=item)
        else:
            problem = f"not an object: {type(item).__name__}"
            yield SourceRecord(source=str(path), line=number, data=None, raw=excerpt(item), problem=problem)


def read_jsonl(path: Path) -> Iterator[SourceRecord]:
    """Read a JSON-lines file. If a line is not a JSON object in UTF-8, its record has a problem.

    Blank lines are skipped. A byte order mark and CRLF are tolerated. If the file's name ends in `.gz`, it is
    decompressed with gzip.

    Raises `DataError` if the file is missing, or if it is compressed and damaged.
    """
    if path.suffix != ".gz":
        with open_text(path) as text:
            yield from _records(str(path), text)
        return
    with open_source(path) as file:
        try:
            with gzip.open(file) as content:
                yield from _records(str(path), content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}. Fetch it again") from error


def _records(source: str, file: IO[bytes] | gzip.GzipFile) -> Iterator[SourceRecord]:
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            _skip_line(file)
            yield SourceRecord(source=source, line=number, data=None, raw=_decode(line), problem="over-long line")
        elif line.strip():
            yield _record(source, number, line)


def _record(source: str, number: int, line: bytes) -> SourceRecord:
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
    return SourceRecord(source=source, line=number, data=data, raw=raw)


def _skip_line(file: IO[bytes] | gzip.GzipFile) -> None:
    while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
        pass


def _decode(line: bytes) -> str:
    return line[:2000].decode(errors="replace")
