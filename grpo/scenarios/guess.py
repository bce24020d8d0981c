"""Guess the settings of a source from its file.

The names of its keys or columns give candidates. The first records are read with each candidate, and the candidate that
gives the most scenarios is shown. This is only a look before a run: in a run nothing is guessed, because its config
states the kind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from grpo.config.scenarios import Source
from grpo.data_errors import error_text, excerpt
from grpo.errors import DataError, GRPOError
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, ingest
from grpo.scenarios.readers.arrow_file import ArrowFile
from grpo.scenarios.readers.csv_file import read_cells
from grpo.scenarios.readers.help_desks import PAGES
from grpo.scenarios.readers.record_file import read_objects

_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
_TRIED = 200  # records that are read with each candidate
_LOOKED_AT = 20  # records that are searched for their keys
_TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_JSON = {".jsonl": "jsonl", ".ndjson": "jsonl", ".gz": "jsonl", ".json": "json"}
_LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat")
_GROUPS = ("conversation_id", "ticket_id", "conversation", "ticket", "chat_id", "thread_id", "session_id")
_SPEAKERS = ("author_role", "author_type", "sender_type", "role", "speaker", "author", "sender", "from", "message_type")
_TEXTS = ("body", "plain_body", "body_text", "message", "content", "text")
_ORDERS = ("created_at", "timestamp", "created", "time", "date")
_QUESTIONS = ("question", "query", "instruction", "prompt", "utterance", "text", "message", "body", "subject")
_ANSWERS = ("answer", "response", "reply", "completion", "output")
_CATEGORIES = ("category", "topic", "intent", "label")
_IDS = ("id", "ticket", "ticket_id")


def guess_source(path: Path) -> Source:
    """The source that reads the most records of a file.

    Raises `DataError` if the file is missing or in no known format, or if no candidate reads a record.
    """
    candidates = [_SOURCE.validate_python(settings) for settings in _candidates(path)]
    if not candidates:
        raise DataError(f"{path}: none of its keys or columns is known. Map some of them by columns, see docs/logs.md")
    scores = []
    reasons = []
    with tempfile.TemporaryDirectory(prefix="grpo-guess-") as scratch:
        tables = Path(scratch) / SCENARIOS_FILE, Path(scratch) / QUARANTINE_FILE
        for candidate in candidates:
            try:
                counts = ingest((candidate,), *tables, max_quarantined_fraction=1.0, most=_TRIED)
                scores.append((counts.scenarios, candidate))
            except GRPOError as error:
                reasons.append(f"{candidate.kind}: {error_text(error)}")
    if not scores:
        raise DataError(f"{path} cannot be read as it is: {excerpt('; '.join(reasons), 1000)}. See docs/logs.md")
    return max(scores, key=lambda score: score[0])[1]


def as_yaml(source: Source) -> str:
    """Settings of a source as they stand in a config, without defaults."""
    settings = source.model_dump(exclude_defaults=True, mode="json")
    order = {"kind": source.kind, **settings}
    return yaml.safe_dump({"scenarios": {"sources": [order]}}, sort_keys=False, allow_unicode=True)


def _candidates(path: Path) -> list[dict[str, Any]]:
    place = {"path": str(path)}
    if path.is_dir():
        if not any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json", "state.json")):
            raise DataError(f"{path} is a folder, but not of Dataset.save_to_disk. Name a file")
        tables: tuple[dict[str, Any], ...] = ({}, {"chat": {}}, {"chat": {"kind": "alpaca"}})
        return [{"kind": "huggingface", **place, **table} for table in tables]
    if (kind := _TABLES.get(path.suffix)) is not None:
        names = _columns(path, kind)
        return [{"kind": kind, **place, **table} for table in _tables(names, path)]
    if (kind := _JSON.get(path.suffix)) is not None:
        names = _keys(path)
        return [
            *({"kind": chat, **place, **more} for chat, more in _chats(names)),
            *({"kind": kind, **place, **table} for table in _tables(names, path)),
        ]
    known = ", ".join((*_TABLES, *_JSON))
    raise DataError(f"{path}: the name of a file of scenarios or chats ends in {known}. Rename it")


def _columns(path: Path, kind: str) -> list[str]:
    if kind == "parquet":
        return ParquetRows(path).names
    if kind == "arrow":
        return ArrowFile(path).names
    rows = islice(read_cells(path, required=()), _LOOKED_AT)
    return list(dict.fromkeys(name for row in rows for name in row.data or ()))


def _keys(path: Path) -> list[str]:
    records = islice(read_objects(path), _LOOKED_AT)
    return list(dict.fromkeys(name for record in records for name in record.data or ()))


def _chats(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kinds of chats that records with these keys may be, each with its settings."""
    if "comments" in names and "requester_id" in names:
        yield "zendesk", {}
    if {"conversation_parts", "source"} <= {*names}:
        yield "intercom", {}
    if {"helpdesk_ticket", "description_text"} & {*names}:
        yield "freshdesk", {}
    if {"payload", "meta"} & {*names} or ({"messages", "inbox_id"} <= {*names}):
        yield "chatwoot", {}
    yield from ((desk, {}) for desk, keys in PAGES.items() if {*keys} & {*names})
    if "run_type" in names:
        yield "langsmith", {}
    if {"traces", "observations", "trace_id", "traceId", "sessionId", "session_id"} & {*names}:
        yield "langfuse", {}
    if "conversations" in names:
        yield "sharegpt", {}
    if {*_LISTS, "request", "body", "mapping"} & {*names}:
        yield "openai_messages", {}
    if "instruction" in names:
        yield "alpaca", {}
    if {"prompt", "completion"} <= {*names}:
        yield "prompt_completion", {}


def _tables(names: Sequence[str], path: Path) -> Iterator[dict[str, Any]]:
    """Settings of tables with these columns: scenarios, chats, messages, and questions with answers."""
    if "id" in names and any(name in names for name in ("user_responses", "goal", "user_0")):
        yield {}
    if path.suffix in _TABLES:
        for kind, _ in _chats(names):
            if kind in ("openai_messages", "sharegpt", "alpaca", "prompt_completion"):
                yield {"chat": {"kind": kind}}
    group, speaker, text = (_first(names, known) for known in (_GROUPS, _SPEAKERS, _TEXTS))
    if group and speaker and text:
        order = _first(names, _ORDERS)
        yield {"messages": {"group_by": group, "speaker": speaker, "text": text, **({"order": order} if order else {})}}
    if question := _first(names, _QUESTIONS):
        fields: Mapping[str, str | None] = {
            "id": _first(names, _IDS),
            "user_responses": question,
            "expected.responses": _first(names, _ANSWERS),
            "metadata.category": _first(names, _CATEGORIES),
        }
        yield {"columns": {field: column for field, column in fields.items() if column is not None}}


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first known name that is among these, in lower or upper case."""
    by_name = {name.strip().lower().replace(" ", "_"): name for name in reversed(names)}
    return next((by_name[name] for name in known if name in by_name), None)
