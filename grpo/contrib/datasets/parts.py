"""Parts of a published data set: train, dev, test, or any of its files by name.

A part is searched under its path in the publisher's repository and in a folder of single files. Any other name is a
path below the folder, and its file must exist.

    parts ("train", "test")            →  train.jsonl for training, test.jsonl held out
    parts ("train",)                   →  train.jsonl, split by the hash
    parts ("test_socratic.jsonl",)     →  that file, split by the hash
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import DataError
from grpo.scenario import SplitName
from grpo.scenarios.records import SourceRecord, declare_splits

PartPaths = Mapping[str, Sequence[str]]
"""Possible paths of each part below the folder. The first that exists is used."""
_PART_SPLITS: Mapping[str, SplitName] = {
    "train": "train",
    **dict.fromkeys(("dev", "test", "val", "valid", "validation"), "heldout"),
}
_LISTED = 20
"""Most files that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPart:
    """One file or folder of a data set."""

    name: str
    path: Path
    split: SplitName | None
    """Split of the part, if parts of both splits are read. Otherwise None, so that the hash splits its scenarios."""

    @property
    def stem(self) -> str:
        """The name without folders and endings, for ids."""
        return Path(self.name).name.partition(".")[0]

    def files(self, pattern: str) -> list[Path]:
        """The part's file, or the matching files of its folder.

        Raises `DataError` if no file matches.
        """
        if not self.path.is_dir():
            return [self.path]
        paths = sorted(self.path.glob(pattern))
        if not paths:
            raise DataError(f"no {pattern} in {self.path}. Fetch the published files again")
        return paths


def find_parts(folder: Path, wanted: Sequence[str], names: PartPaths) -> list[DatasetPart]:
    """Find the wanted parts, in their order.

    Raises one `DataError` that lists all missing parts and the existing ones.
    """
    places = {name: _place(folder, name, names) for name in wanted}
    missing = [name for name, path in places.items() if path is None]
    if missing:
        raise DataError(
            f"{folder} has no {', '.join(_wanted(name, names) for name in missing)}. There is "
            f"{_listing(folder, names)}. Correct the source's path, or name what is there"
        )
    splits = {_PART_SPLITS[name] for name in wanted if name in _PART_SPLITS}
    return [
        DatasetPart(name=name, path=path, split=_PART_SPLITS.get(name) if len(splits) > 1 else None)
        for name, path in places.items()
        if path is not None
    ]


def read_parts(
    parts: Sequence[DatasetPart], read: Callable[[DatasetPart], Iterator[SourceRecord]]
) -> Iterator[SourceRecord]:
    """Scenarios of the training parts, then of the held-out parts, then of parts without a split."""

    def with_split(split: SplitName | None) -> Iterator[SourceRecord]:
        return (record for part in parts if part.split == split for record in read(part))

    yield from declare_splits(with_split("train"), with_split("heldout"))
    yield from with_split(None)


def _place(folder: Path, name: str, names: PartPaths) -> Path | None:
    places = (folder / place for place in names.get(name, (name,)))
    return next((place for place in places if place.exists()), None)


def _wanted(name: str, names: PartPaths) -> str:
    first = names.get(name, (name,))[0]
    return name if first == name else f"{name} ({first})"


def _listing(folder: Path, names: PartPaths) -> str:
    """Names of the existing parts. If there are none, the files of the folder."""
    known = [name for name in names if _place(folder, name, names) is not None]
    if not known:
        files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        known = [str(path) for path in files if not path.parts[0].startswith(".")]
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return (", ".join(known[:_LISTED]) or "nothing") + more
