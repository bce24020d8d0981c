"""Encoding, delimiter and first line of a delimited file, if they are certain.

    encoding     the setting, or a byte order mark, or UTF-8
    delimiter    the setting, or a first line `sep=;`, or tabs in `.tsv` and `.tab`, or the only one that splits the
                 header, or the only one that splits it into the wanted columns
    header       the first line that is not blank

If one of them is not certain, an error names the setting to write, because to read a file wrongly costs more than to
write a setting.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from grpo.config.csv_format import CsvFormat
from grpo.errors import DataError
from grpo.scenarios.readers.files.csv_rows import read_texts
from grpo.scenarios.readers.files.source_files import MARKS, data_suffix, open_text

_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_HEAD = 65_536  # bytes that hold the header
_SEPARATOR = re.compile(r'"?sep=(.)"?[\r\n]*\Z', re.IGNORECASE)
UNDECODED = re.compile(r"[\udc80-\udcff]")
"""Bytes that are not text in the encoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvDialect:
    """Format of a delimited file."""

    encoding: str
    delimiter: str
    skipped: int
    """Lines before the header."""


def find_dialect(path: Path, settings: CsvFormat, required: Collection[str]) -> CsvDialect:
    """Encoding, delimiter and place of the header of a file.

    Raises `DataError` if the file is missing or in another format, or if one of them is not certain.
    """
    with open_text(path) as file:
        head = file.read(_HEAD)
    encoding = _encoding(path, head, settings)
    lines = io.StringIO(codecs.getincrementaldecoder(encoding)("surrogateescape").decode(head), newline="")
    skipped, stated = 0, None
    while (line := lines.readline()) and not line.strip(" \t\r\n;,|"):
        skipped += 1
    if (match := _SEPARATOR.match(line)) is not None:
        skipped, stated, line = skipped + 1, match[1], ""
        while (line := lines.readline()) and not line.strip(" \t\r\n;,|"):
            skipped += 1
    rest = line + lines.read()
    delimiter = settings.delimiter or stated or _delimiter(path, rest, required)
    header = next(read_texts(io.StringIO(rest, newline=""), delimiter, quoting=settings.quoting is not False), None)
    if header is not None and UNDECODED.search(header.text) and encoding.startswith("utf"):
        raise DataError(
            f"{path}: the header is not {encoding.upper().removesuffix('-SIG')}. Set the source's encoding, such as "
            "cp1252 for a file of Excel on Windows"
        )
    return CsvDialect(encoding=encoding, delimiter=delimiter, skipped=skipped)


def _encoding(path: Path, head: bytes, settings: CsvFormat) -> str:
    mark = next((encoding for mark, encoding in MARKS if head.startswith(mark)), None)
    if settings.encoding is not None:
        given = codecs.lookup(settings.encoding).name
        if mark is not None and not given.startswith(mark.removesuffix("-sig")):
            raise DataError(
                f"{path} begins with the byte order mark of {mark}, and encoding is {given}. Leave encoding out"
            )
        return mark if mark is not None and given in ("utf-8", "utf-16", "utf-32") else given
    if mark is None and head.count(b"\x00") > len(head) // 4:
        raise DataError(f"{path} has a zero in every second byte, as UTF-16 has. Set encoding: utf-16-le or utf-16-be")
    return mark or "utf-8"


def _delimiter(path: Path, text: str, required: Collection[str]) -> str:
    """The only delimiter that fits the header, or a comma if the header has one column."""
    if data_suffix(path) in (".tsv", ".tab"):
        return "\t"
    headers = {delimiter: _cells(text, delimiter) for delimiter in _DELIMITERS}
    splitting = {delimiter: cells for delimiter, cells in headers.items() if len(cells) > 1}
    fitting = [delimiter for delimiter, cells in splitting.items() if all(name in cells for name in required)]
    if len(fitting) == 1:
        return fitting[0]
    if not splitting:
        return ","
    if len(splitting) == 1:
        return next(iter(splitting))
    names = " and ".join(_DELIMITERS[delimiter] for delimiter in splitting)
    raise DataError(f"{path}: {names} all split the header. Set the source's delimiter, such as delimiter: ';'")


def _cells(text: str, delimiter: str) -> list[str]:
    row = next(read_texts(io.StringIO(text, newline=""), delimiter), None)
    if row is None:
        return []
    try:
        return next(csv.reader([row.text], delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration):
        return []
