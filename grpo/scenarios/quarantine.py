"""What became of the records of a published data set: items, or refusals with their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from grpo.errors import DataError
from grpo.scenarios.data_errors import try_call
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.refusal import QuarantineReason, reason_from_error, reason_from_problem

Item = TypeVar("Item", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """A record that is not used: where it stands, and why."""

    source: str
    line: int
    refusal: QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecords(Generic[Item]):
    """The records of a data set: `records = len(items) + len(quarantined)`."""

    items: tuple[Item, ...]
    quarantined: tuple[QuarantinedRecord, ...]

    @property
    def records(self) -> int:
        """How many records were read."""
        return len(self.items) + len(self.quarantined)

    @property
    def reasons(self) -> dict[str, int]:
        """Quarantined records by kind of reason, most frequent first."""
        return dict(Counter(record.refusal.kind for record in self.quarantined).most_common())


def parse_records(records: Iterable[SourceRecord], model: type[Item]) -> ParsedRecords[Item]:
    """Build an item of each record, or quarantine it; of two with the same id the first is used.

    Raises `DataError` where there is no record.
    """
    items: list[Item] = []
    quarantined: list[QuarantinedRecord] = []
    taken: set[str] = set()
    for record in records:
        found = _admit(record, model, taken)
        if isinstance(found, QuarantineReason):
            quarantined.append(QuarantinedRecord(source=record.source, line=record.line, refusal=found))
        else:
            items.append(found)
    if not items and not quarantined:
        raise DataError(f"no record for {model.__name__}; the data set's files are empty")
    return ParsedRecords(items=tuple(items), quarantined=tuple(quarantined))


def _admit(record: SourceRecord, model: type[Item], taken: set[str]) -> Item | QuarantineReason:
    if record.data is None:
        return reason_from_problem(record.problem or "no data")
    item = try_call(lambda: model.model_validate(record.data))
    if isinstance(item, Exception):
        return reason_from_error(item)
    name = record.data["id"]
    if name in taken:
        return reason_from_problem(f"duplicate id: {name}")
    taken.add(name)
    return item
