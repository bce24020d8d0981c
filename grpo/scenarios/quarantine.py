"""Quarantine: records that are not used, each with its place and reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from grpo.data_errors import error_text, excerpt, first_validation_error, try_call
from grpo.errors import DataError
from grpo.scenarios.records import SourceRecord

Item = TypeVar("Item", bound=BaseModel)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReason:
    """Reason why a record is not used."""

    message: str
    """The reason with the record's own values."""
    kind: str
    """The reason without these values, so that records can be counted by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """A record that is not used: its place and the reason."""

    source: str
    line: int
    reason: QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecords(Generic[Item]):
    """The records of a data set: `records = len(items) + len(quarantined)`."""

    items: tuple[Item, ...]
    quarantined: tuple[QuarantinedRecord, ...]

    @property
    def records(self) -> int:
        """Number of records that were read."""
        return len(self.items) + len(self.quarantined)

    @property
    def reasons(self) -> dict[str, int]:
        """Quarantined records by kind of reason, most frequent first."""
        return dict(Counter(record.reason.kind for record in self.quarantined).most_common())


def parse_records(records: Iterable[SourceRecord], model: type[Item]) -> ParsedRecords[Item]:
    """Build an item of each record, or quarantine it. If two records have the same id, the first is used.

    Raises `DataError` if the source is empty.
    """
    items: list[Item] = []
    quarantined: list[QuarantinedRecord] = []
    ids: set[Any] = set()
    for record in records:
        item, name = parse_record(record, model), (record.data or {}).get("id")
        if not isinstance(item, QuarantineReason) and name in ids:
            item = duplicate_id(name)
        if isinstance(item, QuarantineReason):
            quarantined.append(QuarantinedRecord(source=record.source, line=record.line, reason=item))
        else:
            ids.add(name)
            items.append(item)
    if not items and not quarantined:
        raise DataError(f"no record for {model.__name__}. The data set's files are empty")
    return ParsedRecords(items=tuple(items), quarantined=tuple(quarantined))


def parse_record(record: SourceRecord, model: type[Item]) -> Item | QuarantineReason:
    """Build the item of a record, or return the reason why it is not an item."""
    if record.data is None:
        return reason_from_problem(record.problem or "no data")
    item = try_call(lambda: model.model_validate(record.data))
    return reason_from_error(item) if isinstance(item, Exception) else item


def duplicate_id(name: object) -> QuarantineReason:
    """Reason for a record with an id that an earlier record has."""
    return reason_from_problem(f"duplicate id: {name}")


def reason_from_problem(problem: str) -> QuarantineReason:
    """Reason for a record that a reader could not read. The text before the colon is the kind."""
    return QuarantineReason(message=excerpt(problem), kind=excerpt(problem.partition(":")[0]))


def reason_from_error(error: Exception) -> QuarantineReason:
    """Reason for a record that cannot be validated or stored, which is its first error.

    user_responses: user turn 1 is empty → kind `user_responses: user turn N is empty`
    """
    if not isinstance(error, ValidationError):
        kind = "cannot be stored as JSON"
        return QuarantineReason(message=f"{kind}: {error_text(error)}", kind=kind)
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if problem["type"] == "extra_forbidden":
        field = excerpt(".".join(map(str, problem["loc"])))
        return QuarantineReason(message=f"unknown field: {field}", kind="unknown field")
    message = excerpt(first_validation_error(error))
    return QuarantineReason(message=message, kind=_NUMBER.sub("N", message))
