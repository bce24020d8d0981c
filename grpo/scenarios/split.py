"""Split of scenarios: training, and held out for evaluation."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json

from grpo.errors import DataError
from grpo.scenario import SplitName
from grpo.scenarios.table import open_scenarios

MIN_CATEGORY_SIZE = 20
"""Number of training scenarios from which a category must have held-out ones."""

HELDOUT_SHARE = 0.25
"""Share of its scenarios that a generator holds out, by digest."""


class CategoryCount(BaseModel):
    """Scenarios of one category in each split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: int = 0
    heldout: int = 0


class Split(BaseModel):
    """Ids of both splits, in the order of their hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: tuple[str, ...]
    heldout: tuple[str, ...]
    categories: dict[str, CategoryCount]
    """Scenarios in each split, by category."""
    excluded: dict[str, str] = {}
    """Scenarios in neither split, because the environment cannot play them: the reason by id."""


def assign_split(digest: str, *, declared: SplitName | None = None, share: float) -> SplitName:
    """The split that a source declares, or else the split that the digest of the scenario's start gives.

        digest 3fff…, share 0.25 → 0.2499… < 0.25 → heldout

    The same text in the same world is in the same split in every table and under any category. Each category is split
    in proportion, because digests do not depend on categories.
    """
    if declared is not None:
        return declared
    return "heldout" if int(digest, 16) < share * 16 ** len(digest) else "train"


def split(
    scenarios_path: Path, *, validation_fraction: float, limit: int | None, excluded: Mapping[str, str] | None = None
) -> Split:
    """Split a table of scenarios. `limit` keeps that many in each split, the first by hash.

    If a scenario declares no split, but another one with the same start does, it follows that one. An excluded scenario
    is in neither split.

    Raises `DataError` if a split is empty, or if a category of at least 20 scenarios has none held out. Conversations
    of a retraining do not count for that, because clients choose their categories. At a fraction of 1 only scenarios
    that declare the training split are trained on, and the training split may be empty.
    """
    excluded = excluded or {}
    rows = [row for row in _read(scenarios_path) if row.id not in excluded]
    declared = {row.text_digest: row.split for row in rows if row.split is not None}
    train: list[_Row] = []
    heldout: list[_Row] = []
    for row in rows:
        declared_split = row.split or declared.get(row.text_digest)
        assigned = assign_split(row.text_digest, declared=declared_split, share=validation_fraction)
        (heldout if assigned == "heldout" else train).append(row)
    _check(scenarios_path, train, heldout, validation_fraction)
    train, heldout = train[:limit], heldout[:limit]
    return Split(
        train=tuple(row.id for row in train),
        heldout=tuple(row.id for row in heldout),
        categories=_count(train, heldout),
        excluded=dict(excluded),
    )


def validation_split(scenarios_path: Path, splits: Split, *, share: float) -> Split:
    """Split the training scenarios once more. A share of them is the validation split, in `heldout` of the result.

    Hyperparameters are chosen on it, so that the held-out split stays unseen. Scenarios with the same start are in the
    same split. Raises `DataError` if a split is empty.
    """
    train: list[_Row] = []
    heldout: list[_Row] = []
    training = set(splits.train)
    for row in _read(scenarios_path):
        if row.id in training:
            digest = hashlib.sha256(f"validation {row.text_digest}".encode()).hexdigest()
            (heldout if assign_split(digest, share=share) == "heldout" else train).append(row)
    if not train or not heldout:
        raise DataError(
            f"{scenarios_path}: {len(heldout)} of {len(training)} training scenarios are held out at share {share}. "
            "Both splits need some: add scenarios or change validation_fraction"
        )
    return Split(
        train=tuple(row.id for row in train),
        heldout=tuple(row.id for row in heldout),
        categories=_count(train, heldout),
    )


class _Row(NamedTuple):
    """Columns of a scenario that decide its split. Rows sort by digest."""

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
                f"{path}: the {name} split is empty at validation_fraction {share}, of {len(train) + len(heldout)} "
                "scenarios. Add scenarios or change scenarios.validation_fraction"
            )
    counts = _count(train, heldout)
    unjudged = [name for name, count in counts.items() if not count.heldout and count.train >= MIN_CATEGORY_SIZE]
    base = _base_counts(path, train, unjudged) if unjudged else Counter[str]()
    for category in unjudged:
        if base[category] >= MIN_CATEGORY_SIZE:
            raise DataError(
                f"{path}: none of the {base[category]} scenarios of category {category} is held out at "
                f"validation_fraction {share}. Raise scenarios.validation_fraction or declare some of them heldout "
                "in the source"
            )


def _base_counts(path: Path, rows: list[_Row], categories: Collection[str]) -> Counter[str]:
    """Rows of these categories that are not conversations of a retraining."""
    ids = pa.array([row.id for row in rows if row.category in categories], pa.string())
    table = open_scenarios(path).read(columns=["id", "category", "metadata"])
    read = table.filter(pc.is_in(table["id"], value_set=ids)).to_pylist()
    return Counter(row["category"] for row in read if "origin" not in from_json(row["metadata"]))


def _count(train: list[_Row], heldout: list[_Row]) -> dict[str, CategoryCount]:
    in_train, in_heldout = Counter(row.category for row in train), Counter(row.category for row in heldout)
    return {
        category: CategoryCount(train=in_train[category], heldout=in_heldout[category])
        for category in sorted(in_train.keys() | in_heldout.keys())
    }
