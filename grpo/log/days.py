"""Days of a serving log: the conversations that began on a day, with all their turns and feedback.

    turns/2026-11-20    c: 1 ← 2       d: 1            day 2026-11-20    c: 1 ← 2 ← 3, d: 1, feedback on d
    turns/2026-11-21    c: 3           e: 1            day 2026-11-21    e: 1
    feedback/2026-11-21 on d

The conversations of a day are joined without the conversations of other days. If conversations name turns of each
other, e.g. in a log that `grpo serve` did not write, they form one group that belongs to the day of its first turn. So
each gets the reasons that it would get if the whole log were joined at once. The digest of a day covers exactly its
records. Therefore a new day of the log changes its own digest, and the digest of an earlier day only if its
conversations got turns or feedback.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from grpo.log.folder import (
    Problem,
    SegmentPart,
    ServedLog,
    TablePart,
    is_record_erased,
)
from grpo.log.join import Joined, join
from grpo.log.log_tables import DAMAGED
from grpo.log.record_index import (
    DAY_US,
    RecordIndex,
    concatenate,
    index_records,
    index_row,
    name_hash,
    read_index,
    write_index,
)
from grpo.log.records import Record

OPEN = ""
"""Folder of the segments that are not compacted."""
MakeIndex = Callable[[dict[str, Any], Callable[[Path], None]], Path]
"""Path of the file with this identity. If the file is missing, the given function writes it."""


class ChangedLogError(Exception):
    """The tables of these folders differ from their index, because they were damaged since it was made."""

    def __init__(self, folders: Sequence[str]) -> None:
        super().__init__(f"tables of {', '.join(folders)} differ from their index")
        self.folders = tuple(folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationDay:
    """Conversations that began on one day."""

    day: int
    """Days since 1970."""
    digest: str
    """Digest of its records."""
    conversations: Mapping[str, NDArray[np.uint64]]
    """Hashes of its conversations, by the folder that has records of them."""


class LogDays:
    """A snapshot of a serving log by days. Its records are read when a day is joined."""

    def __init__(
        self, log: ServedLog, snapshot: Sequence[str] | None, make_index: MakeIndex, *, reread: Iterable[str] = ()
    ) -> None:
        """Index the snapshot. In `reread` folders the content of files identifies their index, not only the footers."""
        self._log, self._erasures = log, log.erasures()
        self._parts: dict[str, list[TablePart | SegmentPart]] = defaultdict(list)
        for part in log.parts(log.snapshot() if snapshot is None else snapshot):
            self._parts[part.table.path.parent.name if isinstance(part, TablePart) else OPEN].append(part)
        self._make_index, self._reread = make_index, frozenset(reread)
        self.problems: list[Problem] = []
        self.days = self._days()
        self.problems.sort(key=lambda problem: (problem.place, problem.line))

    def join(self, day: ConversationDay) -> Joined:
        """Join the conversations of a day. Raises `ChangedLogError`."""
        records: list[Record] = []
        for folder, hashes in day.conversations.items():
            wanted = frozenset(hashes.tolist())
            for part in self._parts[folder]:
                if isinstance(part, TablePart) and part.table.kind == DAMAGED:
                    continue
                for record in self._log.part_records(part, lambda name, wanted=wanted: name_hash(name) in wanted):  # type: ignore[misc]
                    if not is_record_erased(record, self._erasures):
                        records.append(record)
        rows = [index_row(record) for record in records]
        digests = np.asarray([row[4:6] for row in rows], np.uint64).reshape(-1, 2)
        if _digest(digests[np.lexsort(digests.T[::-1])]) != day.digest:
            raise ChangedLogError(list(day.conversations))
        return join(records)

    def _days(self) -> list[ConversationDay]:
        names, indexes = sorted(self._parts), []
        for name in names:
            indexes.append(self._index(name))
        if not indexes:
            return []
        folder = np.repeat(np.arange(len(names)), list(map(len, indexes)))
        index = concatenate(indexes)
        kept = index.without(self._erasures)
        return list(_grouped(index.filter(kept), folder[kept], names))

    def _index(self, folder: str) -> RecordIndex:
        parts, log = self._parts[folder], self._log
        records = (record for part in parts for record in log.read_part(part))
        if folder == OPEN:
            index, problems = index_records(records)
        else:
            tables = [part for part in parts if isinstance(part, TablePart)]
            digests = sorted(part.digest(whole=folder in self._reread) for part in tables)
            path = self._make_index({"tables": digests}, lambda path: write_index(path, *index_records(records)))
            index, problems = read_index(path)
        self.problems += problems
        return index


def _grouped(index: RecordIndex, folder: NDArray[np.int64], names: Sequence[str]) -> Iterator[ConversationDay]:
    """Days with their digests and the folders of their records, oldest first."""
    day = _first_days(index)
    order = np.lexsort((index.digest_low, index.digest_high, day))
    for rows in np.split(order, np.flatnonzero(np.diff(day[order])) + 1):
        if len(rows) == 0:
            continue
        digests = np.stack([index.digest_high[rows], index.digest_low[rows]], axis=1)
        folders = folder[rows]
        conversations = {
            names[number]: np.unique(index.conversation[rows[folders == number]]) for number in np.unique(folders)
        }
        yield ConversationDay(day=int(day[rows[0]]), digest=_digest(digests), conversations=conversations)


def _first_days(index: RecordIndex) -> NDArray[np.int64]:  # [records]
    """Day of the first turn of each record's group of conversations, or of its first feedback if it has no turn."""
    groups = _groups(index)
    first = np.full(len(index), np.iinfo(np.int64).max)
    first_turn = first.copy()
    np.minimum.at(first, groups, index.time)
    np.minimum.at(first_turn, groups[index.is_turn], index.time[index.is_turn])
    start = np.where(first_turn == np.iinfo(np.int64).max, first, first_turn)
    return start[groups] // DAY_US


def _groups(index: RecordIndex) -> NDArray[np.int64]:  # [records]
    """For each record the number of its group: conversations that share a record or name turns of each other."""
    names, conversation = np.unique(index.conversation, return_inverse=True)
    links = []
    for is_kind in (index.is_turn, ~index.is_turn):
        ids, first, inverse = np.unique(index.id[is_kind], return_index=True, return_inverse=True)
        owners = conversation[is_kind][first]
        links.append((conversation[is_kind], owners[inverse]))  # several records with one id
        if is_kind is index.is_turn and len(ids):
            place = np.minimum(np.searchsorted(ids, index.link), len(ids) - 1)
            names_turn = (ids[place] == index.link) & (index.link != 0)
            links.append((conversation[names_turn], owners[place[names_turn]]))
    left, right = (np.concatenate(side) for side in zip(*links, strict=True))
    differ = left != right
    if not differ.any():
        return conversation
    left, right = left[differ], right[differ]
    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(len(names), len(names)))
    _, labels = connected_components(graph, directed=False)
    return labels.astype(np.int64)[conversation]


def _digest(sorted_digests: NDArray[np.uint64]) -> str:  # [records, 2]
    return hashlib.sha256(np.ascontiguousarray(sorted_digests, "<u8").tobytes()).hexdigest()
