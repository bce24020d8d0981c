"""Parts of a published data set: train, dev, test, or any file of it by its own name.

A part is looked for under the names that its publisher and a folder of single files use. A name that the data set does
not have is a path below the folder, and its file must be there.

    parts ("train", "test")            →  train.jsonl, the training split; test.jsonl, held out
    parts ("train",)                   →  train.jsonl, its split left to the hash
    parts ("test_socratic.jsonl",)     →  that file, its split left to the hash
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo.errors import DataError
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.records import declare_splits
from grpo.scenarios.scenario import SplitName

PartPaths = Mapping[str, Sequence[str]]
"""Places below the folder where a part may lie, by the name of the part; the first that is there counts."""
_SIDES: Mapping[str, SplitName] = {
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
    """The split that the published split gives it; None where only one split of the split is read."""

    @property
    def stem(self) -> str:
        """The name without folders and endings, for ids."""
        return Path(self.name).name.partition(".")[0]

    def files(self, pattern: str) -> list[Path]:
        """The part itself, or where it is a folder, the files of it that match.

        Raises `DataError` where none does.
        """
        if not self.path.is_dir():
            return [self.path]
        paths = sorted(self.path.glob(pattern))
        if not paths:
            raise DataError(f"no {pattern} in {self.path}; fetch the published files again")
        return paths


def find_parts(folder: Path, wanted: Sequence[str], names: PartPaths) -> list[DatasetPart]:
    """Find the wanted parts, in their order.

    Raises one `DataError` that lists all that are missing, and what is there instead.
    """
    places = {name: _place(folder, name, names) for name in wanted}
    missing = [name for name, path in places.items() if path is None]
    if missing:
        raise DataError(
            f"{folder} has no {', '.join(_wanted(name, names) for name in missing)}; there is "
            f"{_listing(folder, names)}; correct the source's path, or name what is there"
        )
    splits = {_SIDES[name] for name in wanted if name in _SIDES}
    return [
        DatasetPart(name=name, path=path, split=_SIDES.get(name) if len(splits) > 1 else None)
        for name, path in places.items()
        if path is not None
    ]


def read_parts(
    parts: Sequence[DatasetPart], read: Callable[[DatasetPart], Iterator[SourceRecord]]
) -> Iterator[SourceRecord]:
    """Scenarios of the training parts, then of the others, each with the split that its part declares."""

    def of(split: SplitName | None) -> Iterator[SourceRecord]:
        return (record for part in parts if part.split == split for record in read(part))

    yield from declare_splits(of("train"), of("heldout"))
    yield from of(None)


def _place(folder: Path, name: str, names: PartPaths) -> Path | None:
    places = (folder / place for place in names.get(name, (name,)))
    return next((place for place in places if place.exists()), None)


def _wanted(name: str, names: PartPaths) -> str:
    first = names.get(name, (name,))[0]
    return name if first == name else f"{name} ({first})"


def _listing(folder: Path, names: PartPaths) -> str:
    """Parts that are there, by name; where none is, the files that are."""
    known = [name for name in names if _place(folder, name, names) is not None]
    if not known:
        files = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
        known = [str(path) for path in files if not path.parts[0].startswith(".")]
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return (", ".join(known[:_LISTED]) or "nothing") + more
