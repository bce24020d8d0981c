"""Index of the records of a serving log: names as hashes, times and digests, without any text.

    conversation   id      link      time   user   digest        of a turn, link is its parent
    5f0c…          91ab…   0         …      0      77be…, 03d1…
    5f0c…          c2e0…   91ab…     …      0      d3a9…, 8f12…

The index of a day's tables is made once. The indexes of all days tell which conversations a new day touches and which
records each has, so that the rows of other days need not be read. A hash is the first 64 bits of a sha256, so that it
can be compared with the documents of erasures. Among a million names, two have the same hash with a probability of 3 in
a hundred million.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from grpo.log.folder import Problem
from grpo.log.lines import record_digest
from grpo.log.records import Erasure, Record, ServedTurn
from grpo.tables import open_parquet

COLUMNS = ("conversation", "id", "link", "user", "digest_high", "digest_low")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
DAY_US = 86_400_000_000
_RECORDS = pa.schema(
    [
        *((name, pa.uint64()) for name in COLUMNS),
        ("time", pa.int64()),
        ("is_turn", pa.bool_()),
        ("is_erased_turn", pa.bool_()),
    ]
)
_PROBLEMS_KEY = b"problems"


def name_hash(name: str | None) -> int:
    """First 64 bits of the sha256 of a name, or 0 for no name."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:8]) if name else 0


def microseconds(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIndex:
    """Records of a part of the log."""

    conversation: NDArray[np.uint64]  # [records]
    id: NDArray[np.uint64]  # [records]
    link: NDArray[np.uint64]  # [records] parent of a turn, turn of feedback; 0 for none
    user: NDArray[np.uint64]  # [records] 0 for none
    digest_high: NDArray[np.uint64]  # [records]
    digest_low: NDArray[np.uint64]  # [records]
    time: NDArray[np.int64]  # [records] microseconds since 1970
    is_turn: NDArray[np.bool_]  # [records]
    is_erased_turn: NDArray[np.bool_]  # [records] turns with the status `erased`, which keep nothing of their user

    def __len__(self) -> int:
        return len(self.time)

    def filter(self, chosen: NDArray[Any]) -> RecordIndex:
        """The chosen records."""
        return RecordIndex(**{name: getattr(self, name)[chosen] for name in _RECORDS.names})

    def without(self, erasures: Sequence[Erasure]) -> NDArray[np.bool_]:  # [records]
        """True for each record that no erasure holds for, see `is_record_erased`."""
        kept = np.ones(len(self), np.bool_)
        for erasure in erasures:
            named = np.isin(self.conversation, _hashes(erasure.conversations)) | (
                self.is_turn & np.isin(self.user, _hashes(erasure.users))
            )
            kept &= ~(named & ~self.is_erased_turn & (self.time <= microseconds(erasure.time)))
        return kept


def concatenate(indexes: Sequence[RecordIndex]) -> RecordIndex:
    """All records of several indexes, in order."""
    return RecordIndex(**{name: np.concatenate([getattr(index, name) for index in indexes]) for name in _RECORDS.names})


def index_records(records: Iterable[Record | Problem]) -> tuple[RecordIndex, list[Problem]]:
    """Index of these records, and the problems among them."""
    problems: list[Problem] = []
    rows: list[tuple[Any, ...]] = []
    for record in records:
        if isinstance(record, Problem):
            problems.append(record)
        else:
            rows.append(index_row(record))
    columns = zip(*rows, strict=True) if rows else ((),) * len(_RECORDS)
    arrays = [np.asarray(column, field.type.to_pandas_dtype()) for column, field in zip(columns, _RECORDS, strict=True)]
    return RecordIndex(**dict(zip(_RECORDS.names, arrays, strict=True))), problems


def write_index(path: Path, index: RecordIndex, problems: Sequence[Problem]) -> None:
    """Write an index and its problems into one file."""
    metadata = {_PROBLEMS_KEY: json.dumps([asdict(problem) for problem in problems])}
    table = pa.table({name: getattr(index, name) for name in _RECORDS.names}, _RECORDS.with_metadata(metadata))
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def read_index(path: Path) -> tuple[RecordIndex, list[Problem]]:
    """Index and problems of a file."""
    table = open_parquet(path).read()
    index = RecordIndex(**{name: table.column(name).to_numpy() for name in _RECORDS.names})
    return index, [Problem(**row) for row in json.loads(table.schema.metadata[_PROBLEMS_KEY])]


def index_row(record: Record) -> tuple[Any, ...]:
    """Row of a record, its cells in the order of the index."""
    digest, is_turn = record_digest(record), isinstance(record, ServedTurn)
    return (
        name_hash(record.conversation_id),
        name_hash(record.id),
        name_hash(record.parent if isinstance(record, ServedTurn) else record.turn_id),
        name_hash(record.user) if isinstance(record, ServedTurn) else 0,
        int.from_bytes(digest[:8]),
        int.from_bytes(digest[8:16]),
        microseconds(record.time),
        is_turn,
        isinstance(record, ServedTurn) and record.status == "erased",
    )


def _hashes(digests: Iterable[str]) -> NDArray[np.uint64]:
    return np.asarray([int(digest[:16], 16) for digest in digests], np.uint64)
