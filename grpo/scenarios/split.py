"""Which scenarios are trained on and which are held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from grpo.errors import DataError
from grpo.scenarios.parquet import open_scenarios
from grpo.scenarios.scenario import Side

JUDGED = 20
"""Scenarios on the training side from which on a category must have some that are held out."""


class CategoryCount(BaseModel):
    """Scenarios of one category on each side."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: int = 0
    heldout: int = 0


class Split(BaseModel):
    """Ids of both sides, in the order of their hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    train: tuple[str, ...]
    heldout: tuple[str, ...]
    categories: dict[str, CategoryCount]
    """What the two sides above hold of each category."""
    refused: dict[str, str] = {}
    """Scenarios on neither side, as the environment cannot play them: the reason by id."""


def side_of(text_digest: str, *, declared: Side | None = None, share: float) -> Side:
    """The side that a source declares, or else the one that the text's own digest decides.

        digest 3fff…, share 0.25 → 0.2499… < 0.25 → heldout

    Nothing else decides: the same text is on the same side in every table and whatever category it is filed
    under, and each category is split in proportion because digests do not know categories.
    """
    if declared is not None:
        return declared
    return "heldout" if int(text_digest, 16) < share * 16 ** len(text_digest) else "train"


def split(
    scenarios_path: Path, *, heldout_share: float, limit: int | None, refused: Mapping[str, str] | None = None
) -> Split:
    """Split a table of scenarios; `limit` keeps that many on each side, the first by hash.

    A scenario without a declared side follows a declared one with the same text; a refused one is on neither side.

    Raises `DataError` where a side is empty, or a category of at least 20 scenarios has none held out. At a share of 1
    nothing is trained on but what is declared so.
    """
    refused = refused or {}
    rows = [row for row in _read(scenarios_path) if row.id not in refused]
    declared = {row.text_digest: row.side for row in rows if row.side is not None}
    train: list[_Row] = []
    heldout: list[_Row] = []
    for row in rows:
        side = side_of(row.text_digest, declared=row.side or declared.get(row.text_digest), share=heldout_share)
        (heldout if side == "heldout" else train).append(row)
    _check(scenarios_path, train, heldout, heldout_share)
    train, heldout = train[:limit], heldout[:limit]
    return Split(
        train=tuple(row.id for row in train),
        heldout=tuple(row.id for row in heldout),
        categories=_count(train, heldout),
        refused=dict(refused),
    )


def hold_back(scenarios_path: Path, sides: Split, *, share: float) -> Split:
    """Split the training side once more: a share of it is held out, and the held-out side is on neither.

    So that settings may be chosen on scenarios that neither train nor judge. The same text is on one side.
    Raises `DataError` where a side is empty.
    """
    train: list[_Row] = []
    heldout: list[_Row] = []
    trained = set(sides.train)
    for row in _read(scenarios_path):
        if row.id in trained:
            again = hashlib.sha256(f"validation {row.text_digest}".encode()).hexdigest()
            (heldout if side_of(again, share=share) == "heldout" else train).append(row)
    if not train or not heldout:
        raise DataError(
            f"{scenarios_path}: {len(heldout)} of {len(trained)} training scenarios are held back at share {share}; "
            "both sides need some: add scenarios or change validation_share"
        )
    return Split(
        train=tuple(row.id for row in train),
        heldout=tuple(row.id for row in heldout),
        categories=_count(train, heldout),
    )


class _Row(NamedTuple):
    """What the split looks at; rows sort by digest."""

    text_digest: str
    id: str
    category: str
    side: Side | None


def _read(path: Path) -> list[_Row]:
    """All rows, in the order of their digests."""
    columns = open_scenarios(path).read(columns=list(_Row._fields)).to_pydict()
    return sorted(map(_Row._make, zip(*(columns[name] for name in _Row._fields), strict=True)), key=lambda r: r[:2])


def _check(path: Path, train: list[_Row], heldout: list[_Row], share: float) -> None:
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows and (name, share) != ("training", 1):
            raise DataError(
                f"{path}: the {name} side is empty at heldout_share {share}, of {len(train) + len(heldout)} scenarios; "
                "add scenarios or change scenarios.heldout_share"
            )
    for category, count in _count(train, heldout).items():
        if count.heldout == 0 and count.train >= JUDGED:
            raise DataError(
                f"{path}: none of the {count.train} scenarios of category {category} is held out at heldout_share "
                f"{share}; raise scenarios.heldout_share or declare some of them heldout in the source"
            )


def _count(train: list[_Row], heldout: list[_Row]) -> dict[str, CategoryCount]:
    trained, held = Counter(row.category for row in train), Counter(row.category for row in heldout)
    return {
        category: CategoryCount(train=trained[category], heldout=held[category])
        for category in sorted(trained.keys() | held.keys())
    }
