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
from grpo.scenarios.readers.csv_file import read_rows
from grpo.scenarios.readers.help_desks import PAGES
from grpo.scenarios.readers.record_file import read_objects

_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
_TRIED = 200  # records that are read with each candidate
_LOOKED_AT = 20  # records that are searched for their keys
_TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_JSON = {".jsonl": "jsonl", ".ndjson": "jsonl", ".gz": "jsonl", ".json": "json"}
_ROLES = ("role", "from", "speaker", "sender", "author", "sender_type", "author_role")
_CONTENTS = ("content", "value", "text", "utterance", "message", "body")
_PARTS_OF_CHATS = ("history", "chat_history", "context_messages")
"""Lists with the earlier messages of a chat. The question and the reply are elsewhere in the record."""
_SPEAKER_KINDS = ("author_role", "author_type", "sender_type", "role", "speaker", "message_type")
"""Columns that tell which side wrote a message, so that a row is a message and not a scenario."""
_LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat")
_GROUPS = ("conversation_id", "ticket_id", "conversation", "ticket", "chat_id", "thread_id", "session_id", "thread")
_SPEAKERS = (
    "author_role",
    "author_type",
    "sender_type",
    "role",
    "speaker",
    "author",
    "sender",
    "from",
    "direction",
    "message_type",
)
_TEXTS = ("body", "plain_body", "body_text", "message", "message_text", "content", "text")
_ORDERS = ("created_at", "timestamp", "created", "time", "date")
_QUESTIONS = ("instruction", "question", "query", "prompt", "utterance", "text", "message", "body")
_QUESTIONS_LAST = ("description", "ticket_description", "subject")
_ANSWERS = ("output", "answer", "response", "reply", "completion")
_CONTEXTS = ("system", "system_prompt", "preamble", "context")
_CATEGORIES = ("category", "topic", "intent", "label")
_IDS = ("id", "ticket", "ticket_id")


def guess_source(path: Path) -> Source:
    """The source that reads the most records of a file.

    Raises `DataError` if the file is missing or in no known format, or if no candidate reads a record.
    """
    candidates = [_SOURCE.validate_python(settings) for settings in _candidates(path)]
    if not candidates:
        names = _names(path)
        shown = excerpt(", ".join(names), 300) or "nothing"
        if _are_messages(names):
            raise DataError(
                f"{path}: each row is one message, and no column with a known name tells to which conversation it "
                f"belongs. It has {shown}. Name that column in messages.group_by, see docs/logs.md"
            )
        raise DataError(
            f"{path} has {shown}, and none of these keys or columns is known. Map some of them by columns, column or "
            "messages, see docs/logs.md"
        )
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
        shown = excerpt("; ".join(dict.fromkeys(reasons)), 1000)
        raise DataError(f"{path} cannot be read as it is: {shown}. See docs/logs.md")
    return max(scores, key=lambda score: score[0])[1]


def unread_columns(source: Source, path: Path) -> list[str]:
    """Keys or columns of a file that the settings of a table do not name. They are not in its scenarios."""
    mapped, rows = getattr(source, "columns", {}), getattr(source, "messages", None)
    if not mapped and rows is None:
        return []
    read = {*mapped.values(), *((rows.group_by, rows.speaker, rows.text, rows.order, *rows.where) if rows else ())}
    return [name for name in _names(path) if name not in read]


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
    names = _names(path)
    if (kind := _TABLES.get(path.suffix)) is not None:
        return [{"kind": kind, **place, **table} for table in _tables(names, path)]
    kind = _JSON[path.suffix]
    return [
        *({"kind": chat, **place, **more} for chat, more in _chats(names)),
        *({"kind": "openai_messages", **place, **more} for more in _lists_by_shape(path)),
        *({"kind": kind, **place, **table} for table in _tables(names, path)),
    ]


def _names(path: Path) -> list[str]:
    """Keys of the first records, or columns. Raises `DataError` if the file is in no known format."""
    if path.is_dir():
        return []
    kind = _TABLES.get(path.suffix)
    if kind == "parquet":
        return ParquetRows(path).names
    if kind == "arrow":
        return ArrowFile(path).names
    if kind == "csv":
        rows = islice(read_rows(path, required=()), _LOOKED_AT)
        return list(dict.fromkeys(name for row in rows for name in row.cells))
    if path.suffix in _JSON:
        return list(dict.fromkeys(name for data in _first_records(path) for name in data))
    known = ", ".join((*_TABLES, *_JSON))
    raise DataError(
        f"{path}: scenarios and chats are read from files that end in {known}. Save a workbook as CSV, and write "
        "anything else as JSON lines with a list of messages in each line, see docs/logs.md"
    )


def _first_records(path: Path) -> list[dict[str, Any]]:
    return [record.data for record in islice(read_objects(path), _LOOKED_AT) if record.data is not None]


def _lists_by_shape(path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a list of messages under a key, or with keys, that have no common name.

    {"chat_messages": [{"sender": "human", "text": "Hi"}, …]}
    → column chat_messages, names {role: sender, content: text}

    Only the list of a whole chat is taken. If a record has two lists, or if speakers of one role or answers below a
    message are all that the list has, another part of the record belongs to the chat.
    """
    record = next(iter(_first_records(path)), {})
    shapes = [(key, names) for key, value in record.items() if (names := _shape(value)) and key not in _PARTS_OF_CHATS]
    if len(shapes) == 1:
        ((key, names),) = shapes
        yield {"column": key, "names": {field: name for field, name in names.items() if field != name}}


def _shape(value: Any) -> dict[str, str] | None:
    """Keys of the speaker and of the text in a list of messages of two or more speakers. None for anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    role, content = (next((name for name in known if name in value[0]), None) for known in (_ROLES, _CONTENTS))
    if role is None or content is None or any(isinstance(item.get("children"), list) for item in value):
        return None
    speakers = {item.get(role) for item in value if isinstance(item.get(role), str)} - {"system", "developer"}
    return {"role": role, "content": content} if len(speakers) > 1 else None


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
    if "run_type" in names:
        yield "langsmith", {}
    if {"traces", "observations", "trace_id", "traceId", "sessionId", "session_id"} & {*names}:
        yield "langfuse", {}
    if "conversations" in names:
        yield "sharegpt", {}
    if {*_LISTS, "request", "request_body", "body", "mapping", "contents"} & {*names}:
        yield "openai_messages", {}
    if "instruction" in names or ("history" in names and _first(names, _QUESTIONS)):
        others = {
            "instruction": _first(names, _QUESTIONS),
            "output": _first(names, _ANSWERS),
            "input": _first(names, ("input", "context")),
        }
        renamed = {key: name for key, name in others.items() if name is not None and name != key}
        yield "alpaca", {"names": renamed} if renamed else {}
    if "prompt" in names:
        yield "prompt_completion", {}
    yield from ((desk, {}) for desk, keys in PAGES.items() if {*keys} & {*names})


def _tables(names: Sequence[str], path: Path) -> Iterator[dict[str, Any]]:
    """Settings of tables with these columns: scenarios, chats, messages, and questions with answers."""
    if "id" in names and any(name in names for name in ("user_responses", "goal", "user_0")):
        yield {}
    if path.suffix in _TABLES:
        for kind, more in _chats(names):
            if kind in ("openai_messages", "sharegpt", "alpaca", "prompt_completion"):
                yield {"chat": {"kind": kind, **more}}
    group, speaker, text = (_first(names, known) for known in (_GROUPS, _SPEAKERS, _TEXTS))
    if group and speaker and text:
        order = _first(names, _ORDERS)
        yield {"messages": {"group_by": group, "speaker": speaker, "text": text, **({"order": order} if order else {})}}
    question = _first(names, (*_QUESTIONS, *_QUESTIONS_LAST))
    if question and not {*_PARTS_OF_CHATS} & {*names} and not _are_messages(names):
        fields: Mapping[str, str | None] = {
            "id": _first(names, _IDS),
            "user_responses": question,
            "context": _first(names, _CONTEXTS),
            "tools": _first(names, ("tools",)),
            "expected.responses": _first(names, _ANSWERS),
            "metadata.category": _first(names, _CATEGORIES),
        }
        yield {"columns": {field: column for field, column in fields.items() if column is not None}}


def _are_messages(names: Sequence[str]) -> bool:
    """Are the rows single messages of conversations, and no column with a known name tells of which ones?

    A row with a question and an answer is a whole exchange, also if it has a column `role`, e.g. for a persona.
    """
    if _first(names, _QUESTIONS) and _first(names, _ANSWERS):
        return False
    return bool(_first(names, _SPEAKER_KINDS) and _first(names, _TEXTS)) and _first(names, _GROUPS) is None


def _first(names: Sequence[str], known: Sequence[str]) -> str | None:
    """The first known name that is among these, in any case, with or without spaces and underscores."""
    by_name = {_folded(name): name for name in reversed(names)}
    return next((by_name[_folded(name)] for name in known if _folded(name) in by_name), None)


def _folded(name: str) -> str:
    return name.lower().replace(" ", "").replace("_", "")
