"""Conversations → those that may be trained on, and for each other one the gate that refused it.

    records ─ schema ─ complete ─ licence ─ consent ─ redaction ─→ seen ─ contamination ─ duplicates ─→ accepted
                └───────┴───────────┴─────────┴──────────────────────────────┴───────────────┴───────→ refused

What is refused leaves its id, the gate and the reason, never its words: who did not agree is not kept.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import Source
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
from grpo.retraining.redaction import Redacted
from grpo.scenarios.data_errors import excerpt
from grpo.scenarios.quarantine import ParsedRecords, parse_records, reason_from_error
from grpo.scenarios.scenario import Scenario
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import SCHEMA, TableWriter, scenario_row

CONVERSATIONS = "conversations"
"""Kind of the artifact, and the tag by which a version says which conversations there were when it was trained."""
ACCEPTED, REDACTED, REJECTED = "accepted.parquet", "redacted.parquet", "rejected.parquet"
REJECTIONS = pa.schema([("record", pa.string()), ("gate", pa.string()), ("reason", pa.string())])


class CurationCounts(BaseModel):
    """What became of the conversations: `records = accepted + sum(refused)`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    records: int
    accepted: int
    rejected: dict[str, int]
    """By gate and kind of reason."""
    redacted: dict[str, int]
    """Different pieces of personal data that were replaced, by kind."""
    redacted_conversations: int


def curate_conversations(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    settings: CurationSettings,
) -> CurationCounts:
    """Read conversations and let them through the gates; writes the three tables into `folder`.

    `known` are the scenarios that are trained on anyway, `heldout` those that nothing may be trained on.
    Raises `BudgetError` where more than `settings.max_unreadable_fraction` of the records are no scenarios.
    """
    parsed = _read(sources)
    _check(parsed, settings.max_unreadable_fraction)
    first: tuple[Filter, ...] = (
        SchemaFilter(),
        RequiredFieldsFilter(settings.required_fields),
        LicenceFilter(settings.licences),
        ConsentFilter(settings.consents),
    )
    then: tuple[Filter, ...] = (
        ContaminationFilter(heldout, settings.near_duplicate_threshold),
        DuplicateFilter(known, settings.near_duplicate_threshold),
    )
    rejected: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    accepted = touched = 0
    with (
        TableWriter(folder / ACCEPTED, SCHEMA) as accepted_table,
        TableWriter(folder / REDACTED, SCHEMA) as seen_table,
        TableWriter(folder / REJECTED, REJECTIONS) as refused_table,
    ):
        for record in parsed.quarantined:
            rejected[f"schema: {record.reason.kind}"] += 1
            refused_table.add((excerpt(f"{record.source}:{record.line}"), "schema", record.reason.kind))
        for item in parsed.items:
            raw = IncomingConversation(scenario=item, masked=masked_user_text(item))
            clean, reason = None, _first_refusal(first, raw)
            if reason is None:
                clean, reason = _redacted(item)
            if clean is not None:
                row = scenario_row(clean.scenario)
                redacted.update(clean.found)
                touched += bool(clean.found)
                seen_table.add(*row)
                reason = _first_refusal(then, raw)
            if reason is not None:
                gate, why = reason
                rejected[f"{gate}: {why.partition(':')[0]}"] += 1
                refused_table.add((item.id, gate, why))
            elif clean is not None:
                accepted_table.add(*row)
                accepted += 1
    return CurationCounts(
        records=parsed.records,
        accepted=accepted,
        rejected=dict(rejected.most_common()),
        redacted=dict(redacted.most_common()),
        redacted_conversations=touched,
    )


def _read(sources: Sequence[Source]) -> ParsedRecords[Scenario]:
    """Every record of the sources as a scenario, or quarantined; none at all where nobody has spoken yet."""
    records = list(itertools.chain.from_iterable(map(read_records, sources)))
    return parse_records(records, Scenario) if records else ParsedRecords(items=(), quarantined=())


def _check(parsed: ParsedRecords[Scenario], bound: float) -> None:
    unreadable = len(parsed.quarantined)
    if unreadable > bound * parsed.records:
        first = parsed.quarantined[0]
        raise BudgetError(
            f"{unreadable} of {parsed.records} conversations cannot be read, at most {bound:.1%} may be; first: "
            f"{first.source}:{first.line} {first.reason.message}; mend the source or raise curation.max_unreadable_fraction"
        )


def _redacted(item: Scenario) -> tuple[Redacted, None] | tuple[None, tuple[str, str]]:
    """The conversation without personal data, or the refusal of what is no scenario any more, in none of its words."""
    try:
        return Redacted(item), None
    except ValidationError as error:
        return None, ("redaction", f"no scenario once redacted: {reason_from_error(error).message}")


def _first_refusal(gates: Iterable[Filter], incoming: IncomingConversation) -> tuple[str, str] | None:
    for gate in gates:
        reason = gate.reject(incoming)
        if reason is not None:
            return gate.name, reason
    return None
