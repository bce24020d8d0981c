"""Which scenarios are trained on and which are held out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from grpo.errors import DataError
from grpo.scenarios.scenario import SplitName
from grpo.scenarios.table import open_scenarios

MIN_CATEGORY_SIZE = 20
"""Scenarios on the training split from which on a category must have some that are held out."""


class CategoryCount(BaseModel):
    """Scenarios of one category on each split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: int = 0
    heldout: int = 0


class Split(BaseModel):
    """Ids of both splits, in the order of their hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    train: tuple[str, ...]
    heldout: tuple[str, ...]
    categories: dict[str, CategoryCount]
    """What the two splits above hold of each category."""
    excluded: dict[str, str] = {}
    """Scenarios on neither split, as the environment cannot play them: the reason by id."""


def assign_split(text_digest: str, *, declared: SplitName | None = None, share: float) -> SplitName:
    """The split that a source declares, or else the one that the text's own digest decides.

        digest 3fff…, share 0.25 → 0.2499… < 0.25 → heldout

    Nothing else decides: the same text is on the same split in every table and whatever category it is filed
    under, and each category is split in proportion because digests do not know categories.
    """
    if declared is not None:
        return declared
    return "heldout" if int(text_digest, 16) < share * 16 ** len(text_digest) else "train"


def split(
    scenarios_path: Path, *, validation_fraction: float, limit: int | None, excluded: Mapping[str, str] | None = None
) -> Split:
    """Split a table of scenarios; `limit` keeps that many on each split, the first by hash.

    A scenario without a declared split follows a declared one with the same text; a refused one is on neither split.

    Raises `DataError` where a split is empty, or a category of at least 20 scenarios has none held out. At a share of 1
    nothing is trained on but what is declared so.
    """
    excluded = excluded or {}
    rows = [row for row in _read(scenarios_path) if row.id not in excluded]
    declared = {row.text_digest: row.split for row in rows if row.split is not None}
    train: list[_Row] = []
    heldout: list[_Row] = []
    for row in rows:
        split = assign_split(
            row.text_digest, declared=row.split or declared.get(row.text_digest), share=validation_fraction
        )
        (heldout if split == "heldout" else train).append(row)
    _check(scenarios_path, train, heldout, validation_fraction)
    train, heldout = train[:limit], heldout[:limit]
    return Split(
        train=tuple(row.id for row in train),
        heldout=tuple(row.id for row in heldout),
        categories=_count(train, heldout),
        excluded=dict(excluded),
    )


def validation_split(scenarios_path: Path, splits: Split, *, share: float) -> Split:
    """Split the training split once more: a share of it is held out, and the held-out split is on neither.

    So that settings may be chosen on scenarios that neither train nor judge. The same text is on one split.
    Raises `DataError` where a split is empty.
    """
    train: list[_Row] = []
    heldout: list[_Row] = []
    trained = set(splits.train)
    for row in _read(scenarios_path):
        if row.id in trained:
            again = hashlib.sha256(f"validation {row.text_digest}".encode()).hexdigest()
            (heldout if assign_split(again, share=share) == "heldout" else train).append(row)
    if not train or not heldout:
        raise DataError(
            f"{scenarios_path}: {len(heldout)} of {len(trained)} training scenarios are held back at share {share}; "
            "both splits need some: add scenarios or change validation_fraction"
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
    split: SplitName | None


def _read(path: Path) -> list[_Row]:
    """All rows, in the order of their digests."""
    columns = open_scenarios(path).read(columns=list(_Row._fields)).to_pydict()
    return sorted(map(_Row._make, zip(*(columns[name] for name in _Row._fields), strict=True)), key=lambda r: r[:2])


def _check(path: Path, train: list[_Row], heldout: list[_Row], share: float) -> None:
    for name, rows in (("training", train), ("held-out", heldout)):
        if not rows and (name, share) != ("training", 1):
            raise DataError(
                f"{path}: the {name} split is empty at validation_fraction {share}, of {len(train) + len(heldout)} scenarios; "
                "add scenarios or change scenarios.validation_fraction"
            )
    for category, count in _count(train, heldout).items():
        if count.heldout == 0 and count.train >= MIN_CATEGORY_SIZE:
            raise DataError(
                f"{path}: none of the {count.train} scenarios of category {category} is held out at validation_fraction "
                f"{share}; raise scenarios.validation_fraction or declare some of them heldout in the source"
            )


def _count(train: list[_Row], heldout: list[_Row]) -> dict[str, CategoryCount]:
    trained, held = Counter(row.category for row in train), Counter(row.category for row in heldout)
    return {
        category: CategoryCount(train=trained[category], heldout=held[category])
        for category in sorted(trained.keys() | held.keys())
    }
