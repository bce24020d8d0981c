"""Settings of delimited text."""

from __future__ import annotations

import codecs
from typing import Annotated

from pydantic import AfterValidator, Field

from grpo.config.base import Settings


def _text_encoding(name: str) -> str:
    try:
        info = codecs.lookup(name)
    except LookupError:
        info = None
    if info is None or not getattr(info, "_is_text_encoding", True):
        raise ValueError(f"encoding {name} is unknown. Write one of Python's, such as cp1252, latin-1 or utf-16")
    return name


class CsvFormat(Settings):
    """Delimiter, encoding and quoting of a file. Delimiter and encoding are detected where this is certain."""

    delimiter: str | None = Field(default=None, min_length=1, max_length=1, pattern=r'^[^"\r\n]$')
    """Character between cells. None takes the one in a first line such as `sep=|`, a tab in files that end in `.tsv`,
    or else the only one of comma, semicolon, tab and vertical bar that splits the header into the wanted columns."""
    encoding: Annotated[str, AfterValidator(_text_encoding)] | None = None
    """Encoding of the text, such as cp1252. None takes the encoding of a byte order mark, or UTF-8 if there is none."""
    quoting: bool | None = None
    """True: a cell in double quotes may hold delimiters, newlines and doubled quotes. False: quotes are text, as in
    files that some databases write. None is True, but rows of the table in one quoted cell are refused."""


DETECTED = CsvFormat()
"""Delimiter and encoding are detected."""
