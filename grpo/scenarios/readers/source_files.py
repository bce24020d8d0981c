"""Opening of source files, and their size limits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from grpo.errors import DataError

LONGEST_LINE = 16 * 2**20  # bytes
LARGEST_DOCUMENT = 64 * 2**20  # bytes; parsed JSON takes about ten times as much memory


def open_source(path: Path) -> io.BufferedReader:
    """Open a source; raises `DataError` where it cannot be."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataError(f"no source file at {path}; correct the source's path in scenarios.sources") from error
    except OSError as error:
        raise DataError(f"source {path} cannot be read: {error.strerror}; it must be a readable file") from error


def read_document(path: Path) -> Any:
    """Read a whole JSON file; raises `DataError` where it is missing, too large or broken."""
    with open_source(path) as file:
        content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise DataError(
            f"{path} has more than {LARGEST_DOCUMENT // 2**20} MiB, too much for one JSON document; "
            "write one record a line and read it with kind jsonl"
        )
    try:
        return from_json(content.removeprefix(b"\xef\xbb\xbf"), allow_inf_nan=False)
    except ValueError as error:
        raise DataError(
            f"{path} is not a JSON document: {error}; fix it, or write one record a line (jsonl)"
        ) from error
