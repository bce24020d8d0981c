"""Curation of conversations for training: redaction and filters.

    records ─ schema ─ complete ─ licence ─ consent ─ redaction ─→ redacted ─ contamination ─ duplicates ─→ accepted
                └───────┴───────────┴─────────┴────────────────────────────────┴───────────────┴───────→ rejected

A rejected conversation leaves its id, the filter and the reason, never its text: without consent nothing is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import Field, ValidationError

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource, Source
from grpo.errors import BudgetError
from grpo.retraining.filters import (
    ConsentFilter,
    ContaminationFilter,
    DuplicateFilter,
    Filter,
    IncomingConversation,
    LicenceFilter,
    RequiredFieldsFilter,
    SchemaFilter,
    masked_user_text,
)
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.quarantine import ParsedRecords, parse_records, reason_from_error
from grpo.scenarios.readers.served import join_served, served_records
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.redaction import Redacted
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import SCHEMA, TableWriter, scenario_row
from grpo.storage.documents import Document

CONVERSATIONS = "conversations"
"""Kind of the artifact, and the tag of a version with the digest of the conversations known at its training."""
ACCEPTED, REDACTED, REJECTED = "accepted.parquet", "redacted.parquet", "rejected.parquet"
REJECTIONS = pa.schema([("record", pa.string()), ("filter", pa.string()), ("reason", pa.string())])


class CurationCounts(Document):
    """Counts of accepted and rejected conversations: `records = accepted + sum(rejected)`."""

    records: int
    accepted: int
    rejected: dict[str, int]
    """By filter and kind of reason."""
    redacted: dict[str, int]
    """Distinct values of personal data that were replaced, by kind."""
    redacted_conversations: int
    served: dict[str, int] = Field(default_factory=dict)
    """Counts of the joins of serving logs, see `grpo.scenarios.served.join`."""


def curate_conversations(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    settings: CurationSettings,
) -> CurationCounts:
    """Read, redact and filter conversations; writes the three tables into `folder`.

    `known` are the training scenarios, `heldout` those that must not leak into training. Raises `BudgetError` when
    more than `settings.max_unreadable_fraction` of the records are unreadable.
    """
    parsed, joins = _read(sources)
    _check(parsed, settings.max_unreadable_fraction)
    before_redaction: tuple[Filter, ...] = (
        SchemaFilter(),
        RequiredFieldsFilter(settings.required_fields),
        LicenceFilter(settings.licences),
        ConsentFilter(settings.consents),
    )
    after_redaction: tuple[Filter, ...] = (
        ContaminationFilter(heldout, settings.near_duplicate_threshold),
        DuplicateFilter(known, settings.near_duplicate_threshold),
    )
    rejected: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    accepted = redacted_conversations = 0
    with (
        TableWriter(folder / ACCEPTED, SCHEMA) as accepted_table,
        TableWriter(folder / REDACTED, SCHEMA) as redacted_table,
        TableWriter(folder / REJECTED, REJECTIONS) as rejected_table,
    ):
        for record in parsed.quarantined:
            rejected[f"schema: {record.reason.kind}"] += 1
            rejected_table.add((excerpt(f"{record.source}:{record.line}"), "schema", record.reason.kind))
        for item in parsed.items:
            raw = IncomingConversation(scenario=item, masked=masked_user_text(item))
            clean, rejection = None, _first_rejection(before_redaction, raw)
            if rejection is None:
                clean, rejection = _redact(item)
            if clean is not None:
                row = scenario_row(clean.scenario)
                redacted.update(clean.counts)
                redacted_conversations += bool(clean.counts)
                redacted_table.add(*row)
                rejection = _first_rejection(after_redaction, raw)
            if rejection is not None:
                name, reason = rejection
                rejected[f"{name}: {reason.partition(':')[0]}"] += 1
                rejected_table.add((item.id, name, reason))
            elif clean is not None:
                accepted_table.add(*row)
                accepted += 1
    return CurationCounts(
        records=parsed.records,
        accepted=accepted,
        rejected=dict(rejected.most_common()),
        redacted=dict(redacted.most_common()),
        redacted_conversations=redacted_conversations,
        served=dict(joins),
    )


def _read(sources: Sequence[Source]) -> tuple[ParsedRecords[Scenario], Counter[str]]:
    """Parse all records of the sources, an empty log gives none; and the counts of the serving logs among them."""
    joins: Counter[str] = Counter()
    records: list[SourceRecord] = []
    for source in sources:
        if isinstance(source, ServedSource):
            joined = join_served(source)
            joins.update(joined.counts.flat())
            records += served_records(joined, source)
        else:
            records += read_records(source)
    parsed = parse_records(records, Scenario) if records else ParsedRecords(items=(), quarantined=())
    return parsed, joins


def _check(parsed: ParsedRecords[Scenario], bound: float) -> None:
    unreadable = len(parsed.quarantined)
    if unreadable > bound * parsed.records:
        first = parsed.quarantined[0]
        raise BudgetError(
            f"{unreadable} of {parsed.records} conversations cannot be read, at most {bound:.1%} may be; first: "
            f"{first.source}:{first.line} {first.reason.message}; fix the source or raise "
            "curation.max_unreadable_fraction"
        )


def _redact(item: Scenario) -> tuple[Redacted, None] | tuple[None, tuple[str, str]]:
    """Redact a conversation; one that is not a valid scenario afterwards is rejected, without its text."""
    try:
        return Redacted(item), None
    except ValidationError as error:
        return None, ("redaction", f"invalid once redacted: {reason_from_error(error).message}")


def _first_rejection(filters: Iterable[Filter], incoming: IncomingConversation) -> tuple[str, str] | None:
    for candidate in filters:
        if (reason := candidate.reject(incoming)) is not None:
            return candidate.name, reason
    return None
