"""Conversations of a day, or of a block of another source, after the filters that look at each of them by itself.

    records → schema, required fields, licence, consent, redaction → one row per record

A row has the rejection, or else the redacted conversation and the shingles of its masked text, which are used to
compare it with the others. A rejected conversation leaves its id, the filter and the reason, but never its text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
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
    LicenceFilter,
    RequiredFieldsFilter,
    SchemaFilter,
    masked_user_text,
)
from grpo.scenario import Origin, Scenario
from grpo.scenarios.quarantine import QuarantineReason, parse_record, reason_from_error
from grpo.scenarios.readers.served import served_scenario
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.redaction import redact
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
BLOCK = 512
"""Rows that are written at once."""


def write_day(path: Path, joined: Joined, source: ServedSource, settings: CurationSettings) -> None:
    """Write the conversations of a day of a serving log, and the counts of their join."""
    filters = _filters(settings)
    rows = (_served_row(conversation, source, filters) for conversation in joined.conversations)
    _write(path, rows, counts=joined.counts.flat())


def write_block(path: Path, records: Iterable[SourceRecord], settings: CurationSettings) -> None:
    """Write records of another source than a serving log."""
    filters = _filters(settings)
    _write(path, (_record_row(record, filters) for record in records), counts={})


def _write(path: Path, rows: Iterable[dict[str, Any]], *, counts: Mapping[str, int]) -> None:
    schema = ROWS.with_metadata({COUNTS_KEY: json.dumps(counts)})
    remaining = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=["sender", "user", "model"]) as writer:
        while block := list(islice(remaining, BLOCK)):
            writer.write_table(pa.Table.from_pylist(block, schema))


def _filters(settings: CurationSettings) -> tuple[Filter, ...]:
    return (
        SchemaFilter(),
        RequiredFieldsFilter(settings.required_fields),
        LicenceFilter(settings.licences),
        ConsentFilter(settings.consents),
    )


def first_rejection(filters: Iterable[Filter], conversation: Scenario) -> tuple[str, str] | None:
    """Name and reason of the first filter that rejects a conversation."""
    for candidate in filters:
        if (reason := candidate.reject(conversation)) is not None:
            return candidate.name, reason
    return None


def _served_row(conversation: ServedConversation, source: ServedSource, filters: Iterable[Filter]) -> dict[str, Any]:
    first = conversation.turns[0]
    return {
        "id": scenario_id(conversation.id),
        "time": microseconds(first.time),
        "is_served": True,
        "model": conversation.model,
        "reward": conversation.reward,
        "rating": conversation.judgement.rating,
        "sender": first.key,
        "user": first.user,
        **_row(served_scenario(conversation, source.users), Origin(keys=(first.key,), user=first.user), filters),
    }


def _record_row(record: SourceRecord, filters: Iterable[Filter]) -> dict[str, Any]:
    place = excerpt(f"{record.source}:{record.line}")
    fields = {"time": 0, "place": place, "is_served": False, "sender": "", "user": ""}
    return {**fields, **_row(parse_record(record, Scenario), Origin(), filters)}


def _row(item: Scenario | QuarantineReason, sent: Origin, filters: Iterable[Filter]) -> dict[str, Any]:
    """Cells of a conversation: the rejection, or the redacted scenario."""
    if isinstance(item, QuarantineReason):
        return {"is_scenario": False, "filter": "schema", "reason": item.kind, "message": item.message}
    cells = {"id": item.id, "is_scenario": True}
    rejection = first_rejection(filters, item)
    if rejection is None:
        try:
            return cells | _redacted(item, sent)
        except ValidationError as error:
            rejection = "redaction", f"invalid once redacted: {reason_from_error(error).message}"
    return {**cells, "filter": rejection[0], "reason": rejection[1]}


def _redacted(item: Scenario, sent: Origin) -> dict[str, Any]:
    """Cells of the redacted scenario. Raises `ValidationError` like `redact`."""
    scenario, counts = redact(item)
    cells, _ = scenario_row(scenario)
    given, _ = scenario_row(with_origin(scenario, scenario.metadata.origin or sent))
    names = SCHEMA.names
    return {
        **dict(zip((name for name, _ in TEXT_COLUMNS), text_cells(masked_user_text(item)), strict=True)),
        **dict(zip(REDACTED_COLUMNS, cells, strict=True)),
        "origin_metadata": given[names.index("metadata")],
        "origin_hash": given[names.index("hash")],
        "personal": json.dumps(counts, sort_keys=True) if counts else None,
    }


def with_origin(scenario: Scenario, origin: Origin) -> Scenario:
    """The conversation with its sender in `metadata.origin`."""
    return scenario.model_copy(update={"metadata": scenario.metadata.model_copy(update={"origin": origin})})


def personal_counts(values: Mapping[str | None, int]) -> Counter[str]:
    """Sum of the personal data of all rows, by kind. `values` counts the rows by their cell `personal`."""
    total: Counter[str] = Counter()
    for text, rows in values.items():
        for kind, count in (json.loads(text) if text else {}).items():
            total[kind] += rows * count
    return total
