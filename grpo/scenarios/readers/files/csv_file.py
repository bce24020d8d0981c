"""Delimited text: a scenario's fields as columns, or cells by column."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.csv_format import DETECTED, CsvFormat
from grpo.data_errors import LONGEST_LINE, check_columns
from grpo.errors import DataError
from grpo.scenarios.readers.files.csv_dialect import UNDECODED, find_dialect
from grpo.scenarios.readers.files.csv_rows import RowText, read_texts
from grpo.scenarios.readers.files.row_fields import to_fields
from grpo.scenarios.readers.files.source_files import open_text
from grpo.scenarios.records import SourceRecord, convert_record

_USER = re.compile(r"user_(\d+)")
_RAW = 2000  # characters that are kept of a row's text
_BROKEN = "broken quoting"
_UNCLOSED = f"{_BROKEN}: unexpected end of data"
_LONGEST_NUMBER = 20  # digits
_AS_TEXT = "If quotes are text in this file, set the source's quoting to false, and otherwise to true"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRow:
    """One row of a delimited file. If `problem` is set, cells may be missing."""

    line: int
    cells: dict[str, str]
    raw: str
    problem: str | None = None


def read_csv(path: Path, settings: CsvFormat = DETECTED) -> Iterator[SourceRecord]:
    """Read a delimited file with the fields of a scenario as columns.

    The user's turns are in `user_responses` as a JSON list, or in `user_0`, `user_1`, … If the last of these cells are
    empty, the user has no more turns. Other nested fields are JSON. If a cell is empty, its field is missing.

        id,user_0,user_1,metadata
        a,Hi.,Bye.,"{""category"": ""greeting""}"

    Raises `DataError` if the file is missing, the header is unusable, or the delimiter or encoding is not certain.
    """
    for row in read_rows(path, settings, required=("id",), all_columns=True):
        data = None if row.problem else dict(row.cells)
        record = SourceRecord(source=str(path), line=row.line, data=data, raw=row.raw, problem=row.problem)
        yield convert_record(record, lambda cells: to_fields(_gather_turns(cells)))


def read_cells(path: Path, settings: CsvFormat = DETECTED, *, required: Collection[str]) -> Iterator[SourceRecord]:
    """Read a delimited file, one record per row with its cells by column as data."""
    for row in read_rows(path, settings, required=required):
        data = None if row.problem else dict(row.cells)
        yield SourceRecord(source=str(path), line=row.line, data=data, raw=row.raw, problem=row.problem)


def read_rows(
    path: Path, settings: CsvFormat = DETECTED, *, required: Collection[str], all_columns: bool = False
) -> Iterator[CsvRow]:
    """Read a delimited file with a header and CSV quoting. Quoted cells may hold delimiters and newlines.

    Blank lines, and delimiters at the end of a line, are left out. A row has a problem if one of its cells has more
    characters than `csv.field_size_limit()` (131,072), or if the row has more than 16 MiB.

    Raises `DataError` if the file is missing or empty, or if its header lacks a required column or has it twice. With
    `all_columns` no column may be there twice.
    """
    dialect = find_dialect(path, settings, required)
    encoding, delimiter = dialect.encoding, dialect.delimiter
    with io.TextIOWrapper(open_text(path), encoding=encoding, errors="surrogateescape", newline="") as file:
        for _ in range(dialect.skipped):
            file.readline()
        header: list[str] | None = None
        quoting = settings.quoting is not False
        for text in read_texts(file, delimiter, dialect.skipped + 1, quoting=quoting):
            cells = _split(text, delimiter, quoting=quoting)
            if header is None:
                header = _read_header(path, cells, required, all_columns=all_columns)
            elif isinstance(cells, str):
                yield from _lines(text, cells) if cells == _UNCLOSED else (_broken(text.line, text.text, cells),)
            elif not cells:
                continue
            elif settings.quoting is None and (problem := _swallowed(cells, delimiter)) is not None:
                yield from _lines(text, problem)
            else:
                yield _row(text.line, header, cells, _clean(text.text), encoding)
        if header is None:
            _read_header(path, [], required, all_columns=all_columns)


def _split(text: RowText, delimiter: str, *, quoting: bool) -> list[str] | str:
    """Cells of a row, or its problem. A blank line has no cells."""
    if not text.whole:
        return f"over-long row: more than {LONGEST_LINE} characters"
    reader = partial(csv.reader, [text.text], delimiter=delimiter, strict=True)
    try:
        return next(reader() if quoting else reader(quoting=csv.QUOTE_NONE))
    except csv.Error as error:
        if len(text.text) > csv.field_size_limit() and "limit" in str(error):
            return f"over-long cell: more than {csv.field_size_limit()} characters"
        return f"{_BROKEN}: {error}"


def _swallowed(cells: Sequence[str], delimiter: str) -> str | None:
    """Problem of a row that has a quoted cell with whole rows of the table: its quotes are text, as in 15" of a screen.

    That is so if the row begins with a number, and each line of the cell with the next one and as many cells.
    """
    number = cells[0]
    for cell in cells[1:] if number.isascii() and number.isdigit() and len(number) < _LONGEST_NUMBER else ():
        lines = [line.split(delimiter) for line in _physical(cell)[1:]]
        following = [str(int(number) + count) for count in range(1, len(lines) + 1)]
        if lines and [line[0] for line in lines] == following and {len(line) for line in lines} == {len(cells)}:
            return f"{_BROKEN}: {len(lines) + 1} rows of the table are in one quoted cell. {_AS_TEXT}"
    return None


def _physical(text: str) -> list[str]:
    """Lines of a text as editors count them. `str.splitlines` also ends one at U+2028."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _lines(text: RowText, problem: str) -> Iterator[CsvRow]:
    """The lines of a row, each as a row that cannot be read, so that the share of such rows is right."""
    for number, line in enumerate(_physical(text.text)):
        yield _broken(text.line + number, line, problem)


def _broken(line: int, text: str, problem: str) -> CsvRow:
    return CsvRow(line=line, cells={}, raw=_clean(text), problem=problem)


def _read_header(path: Path, header: list[str] | str, required: Collection[str], *, all_columns: bool) -> list[str]:
    if isinstance(header, str):
        raise DataError(f"{path}: the header cannot be read: {header}. The first line must name the columns")
    while header and not header[-1].strip():
        header.pop()
    check_columns(path, len(header))
    if not header:
        raise DataError(f"source {path} is empty. Fill it or take it out of scenarios.sources")
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)} in the header ({_clean(', '.join(header)):.200}). The first line "
            "must name the columns. If the columns are separated by another character, set the source's delimiter"
        )
    counts = Counter(header)
    duplicates = {name for name in counts if counts[name] > 1 and (all_columns or name in required)}
    if all_columns and "user_responses" in header and any(_USER.fullmatch(name) for name in header):
        duplicates.add("user_responses (also given as user_0, …)")
    if duplicates:
        raise DataError(f"{path}: the header has {', '.join(sorted(duplicates))} twice. Keep one column of each")
    return header


def _row(line: int, header: list[str], cells: list[str], raw: str, encoding: str) -> CsvRow:
    problem = None
    while len(cells) > len(header) and not cells[-1]:
        cells.pop()
    if len(cells) != len(header):
        problem = f"wrong number of cells: {len(cells)}, the header has {len(header)}"
    else:
        undecoded = next((name for name, cell in zip(header, cells, strict=True) if UNDECODED.search(cell)), None)
        if undecoded is not None:
            name = encoding.upper().removesuffix("-SIG")
            problem = f"not {name}: column {undecoded}. Set the source's encoding, such as cp1252"
    return CsvRow(line=line, cells=dict(zip(header, cells, strict=False)), raw=raw, problem=problem)


def _gather_turns(cells: dict[str, str]) -> dict[str, Any]:
    columns = sorted((name for name in cells if _USER.fullmatch(name)), key=lambda name: int(name[len("user_") :]))
    if not columns:
        return dict(cells)
    turns = [cells[name] for name in columns]
    while turns and not turns[-1]:
        turns.pop()
    return {**{name: cell for name, cell in cells.items() if name not in columns}, "user_responses": turns}


def _clean(text: str) -> str:
    return text[:_RAW].encode(errors="surrogateescape").decode(errors="replace")
