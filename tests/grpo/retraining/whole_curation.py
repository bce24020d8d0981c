"""Curation of a whole log at once and in memory: the definition that the curation by days is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource, Source
from grpo.data_errors import excerpt
from grpo.log.join import scenario_id
from grpo.retraining.curation import ACCEPTED, REDACTED, REJECTED, REJECTIONS, CurationCounts
from grpo.retraining.filters import (
    ConsentFilter,
    Filter,
    LicenceFilter,
    RequiredFieldsFilter,
    SchemaFilter,
    masked_user_text,
)
from grpo.scenario import Origin, Scenario
from grpo.scenarios.pii import PIIKind
from grpo.scenarios.quarantine import ParsedRecords, parse_records, reason_from_error
from grpo.scenarios.readers.served import join_served, served_records
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.redaction import redact
from grpo.scenarios.sources import read_records
from grpo.scenarios.table import SCHEMA, TableWriter, scenario_row, write_scenarios
from tests.near_duplicates import NearDuplicates


class ContaminationFilter:
    """Reject a conversation that is similar to a held-out scenario."""

    name = "contamination"

    def __init__(self, heldout: Iterable[Scenario], threshold: float) -> None:
        self._index = NearDuplicates(threshold)
        for scenario in heldout:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, conversation: Scenario) -> str | None:
        """Name the similar held-out scenario; a held-out scenario itself passes."""
        match = self._index.find(masked_user_text(conversation))
        if match is None or match.name == conversation.id:
            return None
        return f"like a held-out scenario: {match.name}, similarity {match.similarity:.2f}"


class DuplicateFilter:
    """Reject near-duplicates of training scenarios and of earlier conversations; of several the first passes.

    `copies` has the ids of the rejected ones by that of the scenario or conversation that they are like.
    """

    name = "duplicates"

    def __init__(self, known: Iterable[Scenario], threshold: float) -> None:
        self.copies: dict[str, list[str]] = {}
        self._index = NearDuplicates(threshold)
        for scenario in known:
            self._index.add(scenario.id, masked_user_text(scenario))

    def reject(self, conversation: Scenario) -> str | None:
        """Name the similar scenario or conversation; without one, add the conversation to the index."""
        masked = masked_user_text(conversation)
        match = self._index.find(masked)
        if match is None:
            self._index.add(conversation.id, masked)
            return None
        self.copies.setdefault(match.name, []).append(conversation.id)
        kind = "duplicate of" if match.similarity == 1 else "near-duplicate of"
        return f"{kind}: {match.name}, similarity {match.similarity:.2f}"


def curate_whole(
    sources: Sequence[Source],
    folder: Path,
    *,
    known: Iterable[Scenario],
    heldout: Iterable[Scenario],
    settings: CurationSettings,
) -> CurationCounts:
    """Read, redact and filter all conversations at once; writes the three tables into `folder`."""
    parsed, joins, origins = _read(sources)
    before_redaction: tuple[Filter, ...] = (
        SchemaFilter(),
        RequiredFieldsFilter(settings.required_fields),
        LicenceFilter(settings.licences),
        ConsentFilter(settings.consents),
    )
    duplicates = DuplicateFilter(known, settings.near_duplicate_threshold)
    after_redaction: tuple[Filter, ...] = (ContaminationFilter(heldout, settings.near_duplicate_threshold), duplicates)
    rejected: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    accepted: list[Scenario] = []
    redacted_conversations = 0
    with (
        TableWriter(folder / REDACTED, SCHEMA) as redacted_table,
        TableWriter(folder / REJECTED, REJECTIONS) as rejected_table,
    ):
        for record in parsed.quarantined:
            rejected[f"schema: {record.reason.kind}"] += 1
            rejected_table.add((excerpt(f"{record.source}:{record.line}"), "schema", record.reason.kind))
        for item in parsed.items:
            clean, rejection = None, _first_rejection(before_redaction, item)
            if rejection is None:
                clean, rejection = _redact(item)
            if clean is not None:
                row = scenario_row(clean[0])
                redacted.update(clean[1])
                redacted_conversations += bool(clean[1])
                redacted_table.add(*row)
                rejection = _first_rejection(after_redaction, item)
            if rejection is not None:
                name, reason = rejection
                rejected[f"{name}: {reason.partition(':')[0]}"] += 1
                rejected_table.add((item.id, name, reason))
            elif clean is not None:
                accepted.append(clean[0])
    write_scenarios(folder / ACCEPTED, _with_origins(accepted, origins, duplicates.copies))
    return CurationCounts(
        records=parsed.records,
        accepted=len(accepted),
        rejected=dict(rejected.most_common()),
        redacted=dict(redacted.most_common()),
        redacted_conversations=redacted_conversations,
        served=dict(joins),
    )


def _read(sources: Sequence[Source]) -> tuple[ParsedRecords[Scenario], Counter[str], dict[str, Origin]]:
    """Parse all records of the sources, an empty log gives none; with counts and origins of the serving logs."""
    joins: Counter[str] = Counter()
    origins: dict[str, Origin] = {}
    records: list[SourceRecord] = []
    for source in sources:
        if isinstance(source, ServedSource):
            joined = join_served(source)
            joins.update(joined.counts.flat())
            for conversation in joined.conversations:
                first = conversation.turns[0]
                origins[scenario_id(conversation.id)] = Origin(keys=(first.key,), user=first.user)
            records += served_records(joined, source)
        else:
            records += read_records(source)
    parsed = parse_records(records, Scenario) if records else ParsedRecords(items=(), quarantined=())
    return parsed, joins, origins


def _with_origins(
    accepted: Iterable[Scenario], origins: Mapping[str, Origin], copies: Mapping[str, Sequence[str]]
) -> Iterator[Scenario]:
    """Accepted conversations with who gave them: the keys of their copies as well, which were rejected as duplicates.

    So the copies of one conversation under ten keys are evidence of each of these keys, and not of ten.
    """
    for item in accepted:
        given = item.metadata.origin or origins.get(item.id, Origin())
        senders = (origins.get(name, Origin()) for name in copies.get(item.id, ()))
        keys = tuple(dict.fromkeys([*given.keys, *(key for sender in senders for key in sender.keys)]))
        origin = given.model_copy(update={"keys": keys})
        yield item.model_copy(update={"metadata": item.metadata.model_copy(update={"origin": origin})})


def _redact(item: Scenario) -> tuple[tuple[Scenario, Counter[PIIKind]], None] | tuple[None, tuple[str, str]]:
    """Redact a conversation; one that is not a valid scenario afterwards is rejected, without its text."""
    try:
        return redact(item), None
    except ValidationError as error:
        return None, ("redaction", f"invalid once redacted: {reason_from_error(error).message}")


def _first_rejection(filters: Iterable[Filter], conversation: Scenario) -> tuple[str, str] | None:
    for candidate in filters:
        if (reason := candidate.reject(conversation)) is not None:
            return candidate.name, reason
    return None
