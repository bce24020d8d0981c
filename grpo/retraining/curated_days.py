"""Conversations of a day, or of a block of another source, after the filters that look at each of them by itself.

    records → schema, required fields, licence, consent, redaction → one row per record

A row has the rejection, or else the redacted conversation and the shingles of its masked text, which are used to
compare it with the others. A rejected conversation leaves its id, the filter and the reason, but never its text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from grpo.config.retraining import CurationSettings
from grpo.config.scenarios import ServedSource
from grpo.data_errors import excerpt
from grpo.log.join import Joined, ServedConversation, scenario_id
from grpo.log.record_index import microseconds
from grpo.retraining.filters import (
    ConsentFilter,
    Filter,
    IncomingConversation,
    LicenceFilter,
    RequiredFieldsFilter,
    SchemaFilter,
    masked_user_text,
)
from grpo.scenario import Origin, Scenario
from grpo.scenarios.quarantine import QuarantineReason, parse_record, reason_from_error
from grpo.scenarios.readers.served import served_record
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.redaction import Redacted
from grpo.scenarios.similar_texts import COLUMNS as TEXT_COLUMNS
from grpo.scenarios.similar_texts import text_cells
from grpo.scenarios.table import SCHEMA, scenario_row

LIGHT = pa.schema(
    [
        ("id", pa.string()),  # of the conversation in a log, else of the scenario; null if a record has none
        ("time", pa.int64()),  # microseconds since 1970; 0 in other sources than serving logs
        ("place", pa.string()),  # source and line of a record that is not from a serving log
        ("filter", pa.string()),  # the filter that rejected it; null for a redacted conversation
        ("reason", pa.string()),
        ("message", pa.string()),  # of a record that is not a scenario
        ("is_scenario", pa.bool_()),
        ("personal", pa.string()),  # number of distinct values of personal data by kind, as JSON; null for none
        ("sender", pa.string()),  # hash of the key that sent it; empty if unknown
        ("user", pa.string()),
        ("is_served", pa.bool_()),
        ("model", pa.string()),  # null if it is not a conversation of a serving log
        ("reward", pa.float64()),
        ("rating", pa.float64()),
    ]
)
ORIGIN_COLUMNS = ("origin_metadata", "origin_hash")
"""Columns `metadata` and `hash` of the conversation with its origin."""
_ORIGIN = [(name, pa.string()) for name in ORIGIN_COLUMNS]
_PREFIX = "redacted_"
ROWS = pa.schema([*LIGHT, *TEXT_COLUMNS, *_ORIGIN, *((f"{_PREFIX}{field.name}", field.type) for field in SCHEMA)])
REDACTED_COLUMNS = [f"{_PREFIX}{name}" for name in SCHEMA.names]
COUNTS_KEY = b"join_counts"
_BLOCK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A record, with the served conversation if it comes from a serving log."""

    record: SourceRecord
    served: ServedConversation | None = None


def write_day(path: Path, joined: Joined, source: ServedSource, settings: CurationSettings) -> None:
    """Write the conversations of a day of a serving log, and the counts of their join."""
    conversations = (Conversation(record=served_record(item, source), served=item) for item in joined.conversations)
    write_rows(path, conversations, settings, counts=joined.counts.flat())


def write_rows(
    path: Path,
    conversations: Iterable[Conversation],
    settings: CurationSettings,
    *,
    counts: Mapping[str, int] | None = None,
) -> None:
    """Write one row per record, in order."""
    filters: tuple[Filter, ...] = (
        SchemaFilter(),
        RequiredFieldsFilter(settings.required_fields),
        LicenceFilter(settings.licences),
        ConsentFilter(settings.consents),
    )
    schema = ROWS.with_metadata({COUNTS_KEY: json.dumps(counts or {})})
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=["sender", "user", "model"]) as writer:
        rows: list[dict[str, Any]] = []
        for conversation in conversations:
            rows.append(_row(conversation, filters))
            if len(rows) == _BLOCK:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema))


def first_rejection(filters: Iterable[Filter], incoming: IncomingConversation) -> tuple[str, str] | None:
    """Name and reason of the first filter that rejects a conversation."""
    for candidate in filters:
        if (reason := candidate.reject(incoming)) is not None:
            return candidate.name, reason
    return None


def _row(conversation: Conversation, filters: Iterable[Filter]) -> dict[str, Any]:
    record, served = conversation.record, conversation.served
    row: dict[str, Any] = {"time": 0, "sender": "", "user": "", "is_served": served is not None}
    if served is None:
        row["place"] = excerpt(f"{record.source}:{record.line}")
    else:
        first = served.turns[0]
        row |= {"id": scenario_id(served.id), "time": microseconds(first.time), "sender": first.key, "user": first.user}
        row |= {"model": served.model, "reward": served.reward, "rating": served.judgement.rating}
    item = parse_record(record, Scenario)
    if isinstance(item, QuarantineReason):
        return {**row, "is_scenario": False, "filter": "schema", "reason": item.kind, "message": item.message}
    row |= {"id": item.id, "is_scenario": True}
    masked = masked_user_text(item)
    rejection = first_rejection(filters, IncomingConversation(scenario=item, masked=masked))
    if rejection is None:
        clean = _redact(item)
        if isinstance(clean, Redacted):
            return row | _redacted(clean, masked, Origin(keys=(row["sender"],), user=row["user"]))
        rejection = clean
    return {**row, "filter": rejection[0], "reason": rejection[1]}


def _redact(item: Scenario) -> Redacted | tuple[str, str]:
    """Redact a conversation. If it is not a valid scenario afterwards, it is rejected without its text."""
    try:
        return Redacted(item)
    except ValidationError as error:
        return "redaction", f"invalid once redacted: {reason_from_error(error).message}"


def _redacted(clean: Redacted, masked: str, sent: Origin) -> dict[str, Any]:
    scenario = clean.scenario
    cells, _ = scenario_row(scenario)
    given, _ = scenario_row(with_origin(scenario, scenario.metadata.origin or sent))
    names = SCHEMA.names
    return {
        **dict(zip((name for name, _ in TEXT_COLUMNS), text_cells(masked), strict=True)),
        **dict(zip(REDACTED_COLUMNS, cells, strict=True)),
        "origin_metadata": given[names.index("metadata")],
        "origin_hash": given[names.index("hash")],
        "personal": json.dumps(clean.counts, sort_keys=True) if clean.counts else None,
    }


def with_origin(scenario: Scenario, origin: Origin) -> Scenario:
    """The conversation with its sender in `metadata.origin`."""
    return scenario.model_copy(update={"metadata": scenario.metadata.model_copy(update={"origin": origin})})


def blocks_of(records: Iterable[SourceRecord]) -> Iterator[list[Conversation]]:
    """Records of another source than a serving log in blocks of bounded size."""
    block: list[Conversation] = []
    for record in records:
        block.append(Conversation(record=record))
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


def personal_counts(values: Mapping[str | None, int]) -> Counter[str]:
    """Sum of the personal data of all rows, by kind. `values` counts the rows by their cell `personal`."""
    total: Counter[str] = Counter()
    for text, rows in values.items():
        for kind, count in (json.loads(text) if text else {}).items():
            total[kind] += rows * count
    return total
