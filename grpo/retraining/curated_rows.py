"""Rows of curated days in the order of their records, read from their files a few at a time.

Memory holds only the place, the id, the time and the text's digest of each row, about 60 bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from grpo.log.folder import Problem
from grpo.log.record_index import DAY_US
from grpo.retraining.near_copies import DayOfTexts
from grpo.scenarios.similar_texts import COLUMNS, TextSet
from grpo.tables import open_parquet

_OPEN = 3  # number of files with rows in memory
_LIGHT = ["id", "time", "filter", "is_scenario", "text", "sender"]
_TEXTS = [name for name, _ in COLUMNS]


@dataclass(frozen=True, slots=True, kw_only=True)
class CuratedSource:
    """Files of one source."""

    days: Sequence[Path]
    place: str = ""
    """Name of a serving log in the places of its conversations."""
    folder: Path | None = None
    """Folder of a serving log. None for another source, which has its files in the order of its records."""
    problems: Sequence[Problem] = ()
    """Lines and rows of a serving log that are not records."""


class CuratedRows:
    """All rows of several sources, by their numbers in the order of the records."""

    def __init__(self, sources: Sequence[CuratedSource]) -> None:
        paths = [path for source in sources for path in source.days]
        tables = [open_parquet(path).read(_LIGHT) for path in paths]
        sizes = [len(table) for table in tables]
        light = pa.concat_tables([*tables, _EMPTY]).combine_chunks()
        del tables
        file = np.repeat(np.arange(len(paths)), sizes)
        row = np.concatenate([np.empty(0, np.int64), *map(np.arange, sizes)])
        order, self.bounds = _order(light, sources, sizes)
        self._paths, self._file, self._row = paths, file[order], row[order].astype(np.int64)
        self.ids: pa.Array = _single(light.column("id").take(pa.array(order)))
        self.time: NDArray[np.int64] = light.column("time").to_numpy()[order]
        self.is_scenario: NDArray[np.bool_] = light.column("is_scenario").to_numpy()[order]
        self.is_rejected: NDArray[np.bool_] = light.column("filter").is_valid().to_numpy()[order]
        self.text: NDArray[np.uint64] = pc.fill_null(light.column("text"), 0).to_numpy()[order]
        senders = _single(light.column("sender").dictionary_encode())
        self.sender_names: list[str] = senders.dictionary.to_pylist()
        self.sender: NDArray[np.int64] = senders.indices.to_numpy()[order].astype(np.int64)
        self._tables: OrderedDict[tuple[int, tuple[str, ...]], pa.Table] = OrderedDict()

    def __len__(self) -> int:
        return len(self._row)

    def repeated_ids(self) -> NDArray[np.bool_]:  # [rows]
        """True for each scenario with an id that an earlier scenario has."""
        places = np.flatnonzero(self.is_scenario)
        codes = _single(self.ids.take(pa.array(places)).dictionary_encode()).indices.to_numpy()
        repeated = np.zeros(len(self), np.bool_)
        repeated[places] = True
        repeated[places[np.unique(codes, return_index=True)[1]]] = False
        return repeated

    def read(self, rows: NDArray[np.int64], columns: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        """Columns of these rows in this order. Consecutive rows of the same file come together."""
        if not len(rows):
            return
        files = self._file[rows]
        for run in np.split(rows, np.flatnonzero(np.diff(files)) + 1):
            table = self._table(int(self._file[run[0]]), tuple(columns))
            yield run, table.take(pa.array(self._row[run]))

    def days(self, rows: NDArray[np.int64], sources: Sequence[CuratedSource]) -> list[NDArray[np.int64]]:
        """These rows by the day on which a conversation began, or by the file of another source."""
        days = []
        for source, start, stop in zip(sources, self.bounds, self.bounds[1:], strict=False):
            own = rows[(rows >= start) & (rows < stop)]
            key = self._file[own] if source.folder is None else self.time[own] // DAY_US
            days += [part for part in np.split(own, np.flatnonzero(np.diff(key)) + 1) if len(part)]
        return days

    def texts(self, rows: NDArray[np.int64]) -> DayOfTexts:
        """Texts of these rows."""

        def read(places: NDArray[np.int64]) -> TextSet:
            parts = [table for _, table in self.read(rows[places], _TEXTS)]
            return TextSet.read(pa.concat_tables(parts) if parts else pa.schema(COLUMNS).empty_table())

        return DayOfTexts(ids=self.ids.take(pa.array(rows)), digests=self.text[rows], read=read)

    def _table(self, file: int, columns: tuple[str, ...]) -> pa.Table:
        key = file, columns
        if key not in self._tables:
            self._tables[key] = open_parquet(self._paths[file]).read(list(columns))
            while len(self._tables) > _OPEN:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]


_EMPTY = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.int64()),
        ("filter", pa.string()),
        ("is_scenario", pa.bool_()),
        ("text", pa.uint64()),
        ("sender", pa.string()),
    ]
).empty_table()


def _order(
    light: pa.Table, sources: Sequence[CuratedSource], sizes: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Numbers of the rows in the order of the records, and the bounds of the sources in it."""
    orders, bounds, files = [np.empty(0, np.int64)], [0], 0
    for source in sources:
        size = sum(sizes[files : files + len(source.days)])
        files += len(source.days)
        own = np.arange(bounds[-1], bounds[-1] + size)
        if source.folder is not None:
            part = light.select(["time", "id"]).slice(bounds[-1], size)
            own = own[pc.sort_indices(part, [("time", "ascending"), ("id", "ascending")]).to_numpy()]
        orders.append(own)
        bounds.append(bounds[-1] + size)
    return np.concatenate(orders), bounds


def _single(column: Any) -> Any:
    """A column as a single chunk."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
