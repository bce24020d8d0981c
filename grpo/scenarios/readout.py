"""What became of the records of a published data set: items, or refusals with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from grpo.errors import DataError
from grpo.scenarios.boundary import attempt
from grpo.scenarios.readers.record import Record
from grpo.scenarios.refusal import Refusal, explain, refuse

Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A record that is not used: where it stands, and why."""

    source: str
    line: int
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout(Generic[Item]):
    """The records of a data set: `records = len(items) + len(quarantined)`."""

    items: tuple[Item, ...]
    quarantined: tuple[Quarantined, ...]

    @property
    def records(self) -> int:
        """How many records were read."""
        return len(self.items) + len(self.quarantined)

    @property
    def reasons(self) -> dict[str, int]:
        """Quarantined records by kind of reason, most frequent first."""
        return dict(Counter(record.refusal.kind for record in self.quarantined).most_common())


def read_out(records: Iterable[Record], model: type[Item]) -> Readout[Item]:
    """Build an item of each record, or quarantine it; of two with the same id the first is used.

    Raises `DataError` where there is no record.
    """
    items: list[Item] = []
    quarantined: list[Quarantined] = []
    taken: set[str] = set()
    for record in records:
        found = _admit(record, model, taken)
        if isinstance(found, Refusal):
            quarantined.append(Quarantined(source=record.source, line=record.line, refusal=found))
        else:
            items.append(found)
    if not items and not quarantined:
        raise DataError(f"no record for {model.__name__}; the data set's files are empty")
    return Readout(items=tuple(items), quarantined=tuple(quarantined))


def _admit(record: Record, model: type[Item], taken: set[str]) -> Item | Refusal:
    if record.data is None:
        return refuse(record.problem or "no data")
    item = attempt(lambda: model.model_validate(record.data))
    if isinstance(item, Exception):
        return explain(item)
    name = record.data["id"]
    if name in taken:
        return refuse(f"duplicate id: {name}")
    taken.add(name)
    return item
