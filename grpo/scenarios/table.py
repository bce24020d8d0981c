"""Parquet tables of scenarios, one row each with nested fields as JSON, and of quarantined records."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from grpo.errors import DataError
from grpo.scenario import Scenario
from grpo.tables import open_parquet

SCHEMA_VERSION = "2"
_VERSION_KEY = b"scenario_schema_version"
_ROWS, _BYTES = 16_384, 64 * 2**20  # of a row group, whichever comes first
_READ_ROWS = 512
_BATCH_ROWS = 4096

_PLAIN = ("id", "topic", "domain", "user_responses", "goal", "context", "split")
_JSON = ("tools", "world", "expected", "metadata")
DERIVED_COLUMNS = ("hash", "text_digest", "category", "difficulty")
"""Columns that are computed from the others. `text_digest` is `start_digest`, which covers the text and the world."""

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("topic", pa.string()),
        ("domain", pa.string()),
        ("user_responses", pa.list_(pa.field("element", pa.string()))),  # Parquet's own name, so that a file has it too
        ("goal", pa.string()),
        ("context", pa.string()),
        ("split", pa.string()),
        ("tools", pa.string()),
        ("world", pa.string()),
        ("expected", pa.string()),
        ("metadata", pa.string()),
        ("hash", pa.string()),
        ("text_digest", pa.string()),
        ("category", pa.string()),
        ("difficulty", pa.string()),
    ],
    metadata={_VERSION_KEY: SCHEMA_VERSION},
)
QUARANTINE_SCHEMA = pa.schema(
    [("source", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("raw", pa.string())]
)

TableRow = tuple[Any, ...]


class _ParquetFile(ABC):
    """Parquet file that is written in row groups. If its block ends without an error, the last group is written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=_dictionaries(schema))
        self._schema = schema

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    @abstractmethod
    def _flush(self) -> None:
        """Write the rows that were added since the last row group."""


class TableWriter(_ParquetFile):
    """Writer of rows into a Parquet file, which keeps at most one row group in memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        super().__init__(path, schema)
        self._rows: list[TableRow] = []
        self._bytes = 0

    def add(self, row: TableRow, size: int = 0) -> None:
        """Append one row with its cells in the schema's order. `size` is roughly its bytes."""
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) == _ROWS or self._bytes >= _BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._rows, self._bytes = [], 0


class BatchWriter(_ParquetFile):
    """Writer of tables into a Parquet file, in row groups of some thousand rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        super().__init__(path, schema)
        self._tables: list[pa.Table] = []

    def add(self, rows: pa.Table) -> None:
        """Append rows with the columns of the schema."""
        self._tables.append(rows.cast(self._schema))
        if sum(map(len, self._tables)) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if any(map(len, self._tables)):
            rows = pa.concat_tables(self._tables).combine_chunks()
            self._writer.write_table(rows, row_group_size=_BATCH_ROWS)
        self._tables = []


def _dictionaries(schema: pa.Schema) -> list[str]:
    """Columns with a dictionary. If the values of a column do not repeat, a dictionary only takes space."""
    distinct = {"id", "hash", "text_digest", "raw", "user_responses"}
    return [name for name in schema.names if name not in distinct]


def write_scenarios(path: Path, scenarios: Iterable[Scenario]) -> int:
    """Write scenarios in row groups, and return their number."""
    count = 0
    with TableWriter(path, SCHEMA) as table:
        for scenario in scenarios:
            table.add(*scenario_row(scenario))
            count += 1
    return count


def scenario_row(scenario: Scenario) -> tuple[TableRow, int]:
    """A scenario's row in `SCHEMA`, and roughly its size in bytes.

    Raises `ValueError` if its world, tools or calls have values that JSON cannot hold: NaN, infinities, integers of
    more than 4,300 digits, depths of more than 200, objects.
    """
    metadata, tools, world, text = scenario.metadata, _json(scenario.tools), _json(scenario.world), scenario.text
    expected = _json(scenario.expected)
    row = (
        scenario.id,
        scenario.topic,
        scenario.domain,
        scenario.user_responses,
        scenario.goal,
        scenario.context,
        scenario.split,
        tools,
        world,
        expected,
        metadata.model_dump_json(),
        scenario.hash,
        start_digest(scenario),
        metadata.category,
        metadata.difficulty,
    )
    return row, len(tools) + len(world) + len(expected) + len(scenario.topic) + len(scenario.context) + len(text)


def start_digest(scenario: Scenario) -> str:
    """Digest of the start of an episode (`Scenario.start`), first 16 hex digits."""
    return hashlib.sha256(scenario.start.encode()).hexdigest()[:16]


def read_scenarios(path: Path, ids: Collection[str] | None = None) -> Iterator[Scenario]:
    """Read scenarios back in the table's order, all of them or only the scenarios with these ids.

    Raises `DataError` if the file is missing or truncated, has another schema, or lacks one of the ids.
    """
    file = open_scenarios(path)
    wanted = None if ids is None else pa.array(sorted(set(ids)), pa.string())
    count = 0
    try:
        for batch in file.iter_batches(batch_size=_READ_ROWS, columns=[*_PLAIN, *_JSON]):
            chosen = batch if wanted is None else batch.filter(pc.is_in(batch.column("id"), value_set=wanted))
            for row in chosen.to_pylist():
                count += 1
                yield _scenario(path, row)
    except (pa.ArrowException, OSError, ValueError) as error:  # text that is not UTF-8, cells that are not JSON
        raise DataError(f"{path} is damaged: {error}. Ingest the sources again") from error
    if wanted is not None and count < len(wanted):
        present = set(open_scenarios(path).read(columns=["id"]).column("id").to_pylist())
        missing = sorted(set(wanted.to_pylist()) - present)
        raise DataError(f"{path} has no scenario {', '.join(missing[:3])}. The ids are from another table")


def read_categories(path: Path) -> dict[str, str]:
    """Category of each scenario of a table, by id."""
    columns = open_scenarios(path).read(columns=["id", "category"])
    return dict(zip(columns["id"].to_pylist(), columns["category"].to_pylist(), strict=True))


class TableScenarios:
    """Scenarios of a table with these ids. Each iteration reads them again, by `read_scenarios`."""

    def __init__(self, path: Path, ids: Collection[str]) -> None:
        self._path, self._ids = path, ids

    def __iter__(self) -> Iterator[Scenario]:
        return read_scenarios(self._path, self._ids)


def open_scenarios(path: Path) -> pq.ParquetFile:
    """Open a table of scenarios. Raises `DataError` if it is another table, or has another schema version."""
    file = open_parquet(path)
    version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"none").decode()
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has scenario schema version {version}, but this release reads {SCHEMA_VERSION}. Ingest the "
            "sources again"
        )
    return file


def is_scenario_table(schema: pa.Schema) -> bool:
    """True for the schema of a table of scenarios."""
    return _VERSION_KEY in (schema.metadata or {})


def _json(value: Any) -> str:
    """JSON that is read back unchanged. Raises `ValueError` if that is impossible."""
    if not value:
        return "{}" if isinstance(value, dict) else "[]"
    content = to_json(value, inf_nan_mode="constants")
    from_json(content, allow_inf_nan=False)
    return content.decode()


def scenario_from_row(row: dict[str, Any]) -> Scenario:
    """Scenario of a row. Raises `ValidationError` or `ValueError` if the row is not a scenario."""
    cells = {name: row[name] for name in _PLAIN} | {name: from_json(row[name]) for name in _JSON}
    return Scenario.model_validate(cells)


def _scenario(path: Path, row: dict[str, Any]) -> Scenario:
    try:
        return scenario_from_row(row)
    except ValidationError as error:
        raise DataError(f"{path}: scenario {row['id']} is not valid: {error}. Ingest again") from error
