"""Contamination and duplicates among the conversations of a year, decided day by day with bounded memory.

    day 1    a, b like a         a passes, b is a duplicate of a
    day 2    c like b, d         c is compared with a, but not with b, which did not pass; then d with a and c

A conversation is compared with the held-out scenarios, then with the training scenarios and with the earlier
conversations that passed. The decisions of a day depend only on its own texts and on the texts that passed before, and
they are kept under the digest of both. So a new day is compared only once with each earlier day, and the texts of
earlier days are read one day at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from grpo.retraining.filters import masked_user_text
from grpo.scenario import Scenario
from grpo.scenarios.similar_texts import COLUMNS, SimilarPairs, TextSet, concatenate, text_cells
from grpo.tables import open_parquet

CONTAMINATION, DUPLICATES = "contamination", "duplicates"
"""Names of the two filters."""
_PENDING_TEXTS = 20_000
"""Largest number of conversations without decisions that are compared with earlier days at once."""
_PASSED_TEXTS = 5_000
"""Number of conversations that passed from which a comparison with earlier days begins."""
_DECISIONS = pa.schema([("filter", pa.string()), ("match", pa.string()), ("similarity", pa.float64())])
_REFERENCES = pa.schema([("name", pa.string()), *COLUMNS])
_Best = dict[int, tuple[str, float]]
"""For the place of a text, name and similarity of the text that it is most similar to."""


class Parts(Protocol):
    """Files that are computed once for each identity."""

    def find(self, stage: str, identity: Mapping[str, Any]) -> Path | None:
        """The file with this identity, if there is one."""

    def make(self, stage: str, identity: Mapping[str, Any], write: Callable[[Path], None]) -> Path:
        """The file with this identity. If it is missing, `write` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfTexts:
    """Redacted conversations in their order. Their texts are read only when they are compared."""

    ids: pa.Array
    digests: NDArray[np.uint64]  # [conversations]
    read: Callable[[NDArray[np.int64]], TextSet]
    """Texts of the conversations at these places."""

    def digest(self, places: NDArray[np.int64] | None = None) -> str:
        """Digest of ids and texts, of all conversations or only of the conversations at these places."""
        ids, digests = (self.ids, self.digests) if places is None else (self.ids.take(places), self.digests[places])
        names = json.dumps(ids.to_pylist()).encode()
        return hashlib.sha256(names + np.ascontiguousarray(digests, "<u8").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Decisions on the conversations of a day, in their order. A rejected one has filter, match and similarity."""

    table: pa.Table

    @property
    def passed(self) -> NDArray[np.int64]:
        """Places of the conversations that passed."""
        return np.flatnonzero(self.table.column("filter").is_null().to_numpy())

    def reasons(self) -> Iterator[tuple[int, str, str, str]]:
        """Place, filter, reason and match of each rejected conversation."""
        rejected = np.flatnonzero(self.table.column("filter").is_valid().to_numpy())
        for place, row in zip(rejected, self.table.take(rejected).to_pylist(), strict=True):
            kind = "like a held-out scenario"
            if row["filter"] == DUPLICATES:
                kind = "duplicate of" if row["similarity"] == 1 else "near-duplicate of"
            reason = f"{kind}: {row['match']}, similarity {row['similarity']:.2f}"
            yield int(place), row["filter"], reason, row["match"]


def decide(
    days: Sequence[DayOfTexts],
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    threshold: float,
    parts: Parts,
) -> list[Decisions]:
    """Decisions of all days, oldest first. If `parts` has the decisions of a day, they are not made again.

    `known` and `heldout` are iterated more than once.
    """
    references = _References(known, parts), _References(heldout, parts)
    chain: list[Any] = [threshold, *(side.digest for side in references)]
    decisions: list[Decisions] = []

    def identity(number: int) -> dict[str, Any]:
        before = hashlib.sha256(json.dumps(chain).encode()).hexdigest()
        return {"before": before, "day": days[number].digest()}

    def add(number: int, path: Path) -> None:
        decisions.append(Decisions(table=open_parquet(path).read()))
        chain[:] = [identity(number)["before"], days[number].digest(decisions[number].passed)]

    while (number := len(decisions)) < len(days):
        path = parts.find("decide_duplicates", identity(number))
        if path is not None:
            add(number, path)
            continue
        block, count = [number], len(days[number].digests)
        while block[-1] + 1 < len(days) and count < _PENDING_TEXTS:
            block.append(block[-1] + 1)
            count += len(days[block[-1]].digests)
        for place, table in zip(block, _decide_block(days, decisions, block, references, threshold), strict=True):
            add(place, parts.make("decide_duplicates", identity(place), lambda path, table=table: _write(path, table)))  # type: ignore[misc]
    return decisions


class _References:
    """Scenarios that conversations are compared with. Their texts are read only if there is something to compare."""

    def __init__(self, scenarios: Iterable[Scenario], parts: Parts) -> None:
        self._scenarios, self._parts = scenarios, parts
        digest = hashlib.sha256()
        for item in scenarios:
            digest.update(json.dumps([item.id, item.user_responses, item.goal]).encode())
        self.digest = digest.hexdigest()

    def most_alike(self, texts: TextSet, threshold: float) -> _Best:
        """For each text the most similar scenario. If several are equally similar, the first."""
        table = open_parquet(self._parts.make("scenario_texts", {"scenarios": self.digest}, self._write)).read()
        names = table.column("name")
        best = _most_alike(SimilarPairs.find(TextSet.read(table), texts, threshold))
        return {text: (names[place].as_py(), similarity) for text, (place, similarity) in best.items()}

    def _write(self, path: Path) -> None:
        with pq.ParquetWriter(path, _REFERENCES, compression="zstd") as writer:
            rows: list[dict[str, Any]] = []
            for item in self._scenarios:
                cells = zip((name for name, _ in COLUMNS), text_cells(masked_user_text(item)), strict=True)
                rows.append({"name": item.id, **dict(cells)})
                if len(rows) == _ROWS:
                    writer.write_table(pa.Table.from_pylist(rows, _REFERENCES))
                    rows = []
            writer.write_table(pa.Table.from_pylist(rows, _REFERENCES))


_ROWS = 512


def _decide_block(
    days: Sequence[DayOfTexts],
    decided: Sequence[Decisions],
    block: Sequence[int],
    references: tuple[_References, _References],
    threshold: float,
) -> Iterator[pa.Table]:
    """Decisions of consecutive days that follow the days in `decided`."""
    texts, places = _distinct([days[number] for number in block])
    known, heldout = references
    alike, judged = known.most_alike(texts, threshold), heldout.most_alike(texts, threshold)
    for part in _parts(days, decided):
        _add_passed(alike, part, texts, threshold)
    for number, of_day in zip(block, places, strict=True):
        table = _decide_day(days[number].ids.to_pylist(), of_day, texts, alike, judged, threshold)
        yield table
        if number != block[-1]:
            _add_passed(alike, [(days[number], Decisions(table=table).passed)], texts, threshold)


def _distinct(days: Sequence[DayOfTexts]) -> tuple[TextSet, list[NDArray[np.int64]]]:
    """The distinct texts of several days, and for each day the places of its conversations' texts in them."""
    all_digests = np.concatenate([day.digests for day in days])
    unique, first, inverse = np.unique(all_digests, return_index=True, return_inverse=True)
    starts = np.cumsum([0, *(len(day.digests) for day in days)])
    sets = []
    for day, start, stop in zip(days, starts, starts[1:], strict=False):
        sets.append(day.read(np.sort(first[(first >= start) & (first < stop)]) - start))
    places = np.empty(len(unique), np.int64)
    places[np.argsort(first)] = np.arange(len(unique))
    return concatenate(sets), np.split(places[inverse], starts[1:-1])


_Passed = list[tuple[DayOfTexts, NDArray[np.int64]]]
"""Days with the places of their conversations that passed."""


def _parts(days: Sequence[DayOfTexts], decided: Sequence[Decisions]) -> Iterator[_Passed]:
    """The decided days in order, in parts of at least `_PASSED_TEXTS` conversations that passed, except the last."""
    part: _Passed = []
    for day, decisions in zip(days, decided, strict=False):
        part.append((day, decisions.passed))
        if sum(len(passed) for _, passed in part) >= _PASSED_TEXTS:
            yield part
            part = []
    if part:
        yield part


def _add_passed(best: _Best, earlier: _Passed, texts: TextSet, threshold: float) -> None:
    """Compare texts with the conversations of earlier days that passed, and update the best matches in `best`.

    If two conversations are equally similar to a text, the first one counts.
    """
    ids = pa.chunked_array([day.ids.take(passed) for day, passed in earlier])
    passed = concatenate([day.read(places) for day, places in earlier])
    for text, (place, similarity) in _most_alike(SimilarPairs.find(passed, texts, threshold)).items():
        if text not in best or similarity > best[text][1]:
            best[text] = ids[place].as_py(), similarity


def _most_alike(pairs: SimilarPairs) -> dict[int, tuple[int, float]]:
    """For each right text the most similar left text. If several are equally similar, the first."""
    order = np.lexsort((pairs.left, -pairs.similarity, pairs.right))
    rights = pairs.right[order]
    first = order[np.flatnonzero(np.diff(rights, prepend=-1))]
    return {int(pairs.right[k]): (int(pairs.left[k]), float(pairs.similarity[k])) for k in first}


def _decide_day(
    ids: Sequence[str],
    places: NDArray[np.int64],
    texts: TextSet,
    alike: _Best,
    judged: _Best,
    threshold: float,
) -> pa.Table:
    """Decisions of a day. `places` has the place of each conversation's text in `texts`."""
    own = np.unique(places)
    pairs = SimilarPairs.find(texts.take(own), texts.take(own), threshold)
    others: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for left, right, similarity in zip(own[pairs.left], own[pairs.right], pairs.similarity, strict=True):
        others[int(right)].append((int(left), float(similarity)))
    passed: dict[int, int] = {}  # number of the conversation that passed with this text
    rows: list[dict[str, Any]] = []
    for number, (name, text) in enumerate(zip(ids, places.tolist(), strict=True)):
        match, reason = judged.get(text), CONTAMINATION
        if match is None or match[0] == name:  # a held-out scenario itself passes
            match, reason = _duplicate_of(text, alike, others, passed, ids), DUPLICATES
        if match is None:
            passed[text] = number
            rows.append({"filter": None, "match": None, "similarity": None})
        else:
            rows.append({"filter": reason, "match": match[0], "similarity": match[1]})
    return pa.Table.from_pylist(rows, _DECISIONS)


def _duplicate_of(
    text: int,
    alike: _Best,
    others: Mapping[int, Sequence[tuple[int, float]]],
    passed: Mapping[int, int],
    ids: Sequence[str],
) -> tuple[str, float] | None:
    """Most similar earlier conversation that passed, or training scenario. None if there is none.

    If several are equally similar, a training scenario or conversation of an earlier day comes first, then the earlier
    conversation of this day.
    """
    best, first = alike.get(text), -1
    for other, similarity in others.get(text, ()):
        number = passed.get(other)
        if number is not None and (best is None or (similarity, -number) > (best[1], -first)):
            best, first = (ids[number], similarity), number
    return best


def _write(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")
