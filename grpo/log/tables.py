"""Parquet tables of the serving log: turns with the column types of rollouts, feedback, and places of damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic_core import from_json

from grpo.log.records import Feedback, Record, ServedTurn
from grpo.messages import Message
from grpo.scenario import Expected
from grpo.tables import TOKEN_COLUMNS, TURN, calls_from_json, calls_to_json, turns_from_rows, turns_to_rows

SCHEMA_VERSION, MERGED_VERSION = "2", "3"
"""Version of a table of one segment, and of a merged table, in which each row names its segment."""
SCHEMA_VERSIONS = (SCHEMA_VERSION, MERGED_VERSION)
SEGMENT = "segment"
VERSION_KEY = b"served_log_version"
_METADATA = {VERSION_KEY: SCHEMA_VERSION}
_END = ("end", pa.int64())
"""Position in the segment after the record. A reader that pinned an earlier position leaves the record out."""

TURNS = pa.schema(
    [
        ("id", pa.string()),
        ("request_id", pa.string()),
        ("conversation_id", pa.string()),
        ("parent", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("model", pa.string()),
        ("policy_hash", pa.string()),
        ("renderer_hash", pa.string()),
        ("arm", pa.string()),
        ("probability", pa.float64()),
        ("turns", pa.list_(TURN)),
        *TOKEN_COLUMNS,
        ("tools", pa.string()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("seed", pa.uint64()),
        ("choice", pa.int32()),
        ("first_token_s", pa.float64()),
        ("latency_s", pa.float64()),
        ("key", pa.string()),
        ("user", pa.string()),
        ("consent", pa.string()),
        ("licence", pa.string()),
        ("metadata", pa.string()),
        _END,
    ],
    metadata=_METADATA,
)
FEEDBACK = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("conversation_id", pa.string()),
        ("turn_id", pa.string()),
        ("rating", pa.float64()),
        ("comment", pa.string()),
        ("correction", pa.string()),
        ("success", pa.bool_()),
        ("expected", pa.string()),
        ("world", pa.string()),
        ("key", pa.string()),
        ("source", pa.string()),
        ("scopes", pa.list_(pa.string())),
        _END,
    ],
    metadata=_METADATA,
)
DAMAGE = pa.schema([("line", pa.int64()), ("bytes", pa.int64()), ("reason", pa.string()), _END], metadata=_METADATA)
_JSON = ("tools", "metadata", "expected", "world", "correction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Line of a segment that is not a record. Its bytes are not kept, because no user's erasure could find them."""

    line: int
    bytes: int
    reason: str


def record_row(record: Record) -> dict[str, Any]:
    """Row of a record, without `end`. Raises `ValueError` for NaN in nested values."""
    schema = TURNS if isinstance(record, ServedTurn) else FEEDBACK
    row = {name: getattr(record, name) for name in schema.names if name != "end"}
    row["time"] = record.time.astimezone(UTC)
    if isinstance(record, ServedTurn):
        row["turns"] = turns_to_rows(record.turns)
        return {**row, "tools": _json(list(record.tools)), "metadata": _json(dict(record.metadata))}
    expected, correction = record.expected, record.correction
    row["scopes"] = list(record.scopes)
    row["expected"] = None if expected is None else _json(expected.model_dump(exclude_defaults=True))
    row["correction"] = (
        None if correction is None else _json([correction.content, calls_to_json(correction.tool_calls)])
    )
    return {**row, "world": None if record.world is None else _json(record.world)}


def record_from_row(row: Mapping[str, Any]) -> Record:
    """Record of a row of either table. Raises the exceptions of the record's class if the row is not a record."""
    cells = {name: cell for name, cell in row.items() if name not in ("end", SEGMENT)}
    for name in _JSON:
        if cells.get(name) is not None:
            cells[name] = from_json(cells[name], allow_inf_nan=False)
    cells["time"] = cells["time"].astimezone(UTC)
    if "turns" not in cells:
        cells["scopes"] = tuple(cells.get("scopes") or ())  # older logs have no such column
        if cells["expected"] is not None:
            cells["expected"] = Expected.model_validate(cells["expected"])
        if cells["correction"] is not None:
            content, calls = cells["correction"]
            cells["correction"] = Message(role="assistant", content=content, tool_calls=calls_from_json(calls))
        return Feedback(**cells)
    cells["turns"] = turns_from_rows(cells["turns"])
    cells["tools"] = tuple(cells["tools"])
    for name, dtype in (("token_ids", np.int32), ("loss_mask", np.bool_), ("sampler_logprobs", np.float32)):
        cells[name] = np.asarray(cells[name], dtype=dtype)
    return ServedTurn(**cells)


def damage_row(damage: Damage) -> dict[str, Any]:
    """Row of a damaged line, without `end`."""
    return asdict(damage)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
