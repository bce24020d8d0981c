"""Opening of source files, and their size limits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.errors import DataError

LARGEST_DOCUMENT = 64 * 2**20  # bytes, because parsed JSON takes about ten times as much memory
_FORMATS = {
    b"PK\x03\x04": "an Excel workbook or another archive. Save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook. Save the sheet as CSV UTF-8",
    b"PAR1": "Parquet. Read it with kind parquet",
    b"ARROW1": "Arrow. Read it with kind arrow",
    b"\x1f\x8b": "compressed. Unpack it, or name JSON lines .jsonl.gz",
}
"""Formats by the first bytes of their files."""


def open_source(path: Path) -> io.BufferedReader:
    """Open a source. Raises `DataError` if it cannot be opened."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataError(f"no source file at {path}. Correct the source's path in scenarios.sources") from error
    except OSError as error:
        raise DataError(f"source {path} cannot be read: {error.strerror}. It must be a readable file") from error


def open_text(path: Path) -> io.BufferedReader:
    """Open a source of text. Raises `DataError` if it cannot be opened, or has another format."""
    file = open_source(path)
    head = file.peek(8)
    for magic, name in _FORMATS.items():
        if head.startswith(magic):
            file.close()
            raise DataError(f"{path} is not text, but {name}")
    return file


def read_document(path: Path) -> Any:
    """Read a whole JSON file. Raises `DataError` if it is missing, too large or broken."""
    with open_text(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise DataError(
            f"{path} has more than {LARGEST_DOCUMENT // 2**20} MiB, too much for one JSON document. "
            "Write one record a line and read it with kind jsonl"
        )
    try:
        return from_json(content.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError as error:
        raise DataError(
            f"{path} is not a JSON document: {error}. Fix it, or write one record a line (jsonl)"
        ) from error
