"""CSV and TSV: a scenario's fields as columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo.errors import DataError
from grpo.scenarios.readers.columns import to_fields
from grpo.scenarios.readers.files import LONGEST_LINE, open_source
from grpo.scenarios.readers.record import Record

_USER = re.compile(r"user_(\d+)")
_UNDECODED = re.compile(r"[\udc80-\udcff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a delimited file; where `problem` is set, cells may be missing."""

    line: int
    cells: dict[str, str]
    raw: str
    problem: str | None = None


def read_csv(path: Path) -> Iterator[Record]:
    """Read a CSV file, or a tab-separated one if its name ends in `.tsv`.

    The user's turns stand in `user_responses` as a JSON list, or in `user_0`, `user_1`, … where trailing empty
    cells mean that the user says no more. Other nested fields are JSON; an empty cell means the field is missing.

        id,user_0,user_1,metadata
        a,Hi.,Bye.,"{""category"": ""greeting""}"

    Raises `DataError` where the file is missing or its header cannot be used.
    """
    delimiter = "\t" if path.suffix == ".tsv" else ","
    for row in read_rows(path, delimiter=delimiter, required=("id",)):
        problem, data = row.problem, None
        if problem is None:
            try:
                data = to_fields(_gather_turns(row.cells))
            except ValueError as error:
                problem = str(error)
        yield Record(source=str(path), line=row.line, data=data, raw=row.raw, problem=problem)


def read_cells(path: Path, *, required: Collection[str]) -> Iterator[Record]:
    """Read a CSV file, or a `.tsv` one, one record a row, whose data are the row's cells by column."""
    for row in read_rows(path, delimiter="\t" if path.suffix == ".tsv" else ",", required=required):
        data = None if row.problem else dict(row.cells)
        yield Record(source=str(path), line=row.line, data=data, raw=row.raw, problem=row.problem)


def read_rows(path: Path, *, delimiter: str, required: Collection[str]) -> Iterator[Row]:
    """Read a delimited file with a header and CSV quoting; quoted cells may hold delimiters and newlines.

    Raises `DataError` where the file is missing or empty, or the header lacks a required column or has one twice.
    """
    consumed: list[str] = []
    with io.TextIOWrapper(open_source(path), encoding="utf-8-sig", errors="surrogateescape", newline="") as file:

        def lines() -> Iterator[str]:
            for line in iter(partial(file.readline, LONGEST_LINE), ""):
                consumed.append(line)
                yield line

        reader = csv.reader(lines(), delimiter=delimiter, strict=True)
        header = _read_header(path, reader, required)
        while True:
            consumed.clear()
            first = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Row(line=first, cells={}, raw=_clean(consumed), problem=f"broken quoting: {error}")
                continue
            if cells:
                yield _row(first, header, cells, _clean(consumed))


def _read_header(path: Path, reader: Iterator[list[str]], required: Collection[str]) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise DataError(f"{path}: the header cannot be read: {error}; the first line must name the columns") from error
    if not header:
        raise DataError(f"source {path} is empty; fill it or take it out of scenarios.sources")
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)} in the header ({_clean([', '.join(header)]):.200}); "
            "the first line must name the columns"
        )
    twice = {name for name in header if header.count(name) > 1}
    if "user_responses" in header and any(_USER.fullmatch(name) for name in header):
        twice.add("user_responses (also given as user_0, …)")
    if twice:
        raise DataError(f"{path}: the header has {', '.join(sorted(twice))} twice; keep one column of each")
    return header


def _row(line: int, header: list[str], cells: list[str], raw: str) -> Row:
    problem = None
    if len(cells) != len(header):
        problem = f"wrong number of cells: {len(cells)}, the header has {len(header)}"
    else:
        undecoded = next((name for name, cell in zip(header, cells, strict=True) if _UNDECODED.search(cell)), None)
        if undecoded is not None:
            problem = f"not UTF-8: column {undecoded}"
    return Row(line=line, cells=dict(zip(header, cells, strict=False)), raw=raw, problem=problem)


def _gather_turns(cells: dict[str, str]) -> dict[str, Any]:
    columns = sorted((name for name in cells if _USER.fullmatch(name)), key=lambda name: int(name[len("user_") :]))
    if not columns:
        return dict(cells)
    turns = [cells[name] for name in columns]
    while turns and not turns[-1]:
        turns.pop()
    return {**{name: cell for name, cell in cells.items() if name not in columns}, "user_responses": turns}


def _clean(lines: list[str]) -> str:
    return "".join(lines).encode(errors="surrogateescape").decode(errors="replace")
