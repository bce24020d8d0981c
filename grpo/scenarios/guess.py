"""Guess the settings of a source from its file.

The names of its keys or columns give candidates. The first records are read with each candidate, and the candidate that
gives the most scenarios is shown, or a kind of traces if it reads the file. This is only a look before a run: in a run
nothing is guessed, because its config states the kind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from grpo.config.chats import KEYS
from grpo.config.scenarios import Source, TraceSource
from grpo.data_errors import error_text, excerpt, read_guarded
from grpo.errors import DataError, GRPOError
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, ingest
from grpo.scenarios.readers.arrow_file import ArrowFile
from grpo.scenarios.readers.csv_file import read_rows
from grpo.scenarios.readers.exchanges import ANSWERS, EXPECTED, QUESTIONS, parsed, value_at
from grpo.scenarios.readers.help_desks import PAGES
from grpo.scenarios.readers.json_file import document_items
from grpo.scenarios.readers.record_file import read_objects
from grpo.scenarios.readers.source_files import data_suffix, open_json, read_document
from grpo.scenarios.records import SourceRecord

_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
_HEAD = 4096  # bytes that are searched for the first character of a file
_TRIED = 200  # records that are read with each candidate
_LOOKED_AT = 20  # records that are searched for their keys
_TABLES = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv"),
    ".parquet": "parquet",
    **dict.fromkeys((".arrow", ".feather"), "arrow"),
}
_JSON = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
_ROLES = ("role", "from", "speaker", "sender", "author", "sender_type", "author_role")
_CONTENTS = ("content", "value", "text", "utterance", "message", "body")
_EARLIER = ("history", "chat_history", "context_messages")
"""Lists with the earlier messages of a chat. The question and the reply are elsewhere in the record."""
_PARTS_OF_CHATS = (*_EARLIER, "input", "inputs", "output", "outputs")
_INPUTS = ("input", "inputs", "attributes.llm.input_messages", "prompt.raw", "arguments.gen_args_0.arg_0", "data")
_LABELS = ("label", "target", "reference")
"""Names of what the output should be that are also names of a class of the whole record."""
_OUTPUTS = ("output", "outputs", "attributes.llm.output_messages", "response.output")
_RECORD_LISTS = ("records", "rows", "items", "examples", "samples", "results", "data", "conversations", "simulations")
_WRAPPERS = ("fields", "item", "data", "doc", "example")
"""Objects that hold the input of a record and what belongs to it, as Argilla, OpenAI's evals and Label Studio have."""
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
_QUESTIONS = ("instruction", "question", "query", "prompt", "utterance", "text", "message", "body", "turns")
_QUESTIONS_LAST = ("description", "ticket_description", "subject")
_ANSWERS = ("output", "answer", "response", "reply", "completion")
_CHATS_AND_QUESTIONS = ("messages", "chat", "conversation", "dialogue", *QUESTIONS)
_CONTEXTS = ("system", "system_prompt", "preamble", "context")
_CATEGORIES = ("category", "topic", "intent", "label")
_IDS = ("id", "ticket", "ticket_id")


def guess_source(path: Path) -> Source:
    """The source that reads the most records of a file.

    Raises `DataError` if the file is missing or in no known format, or if no candidate reads a record.
    """
    candidates = [_SOURCE.validate_python(settings) for settings in read_guarded(lambda: _candidates(path), str(path))]
    if not candidates:
        names = _names(path)
        shown = excerpt(", ".join(names), 300) or "nothing"
        if {"conversation_a", "conversation_b"} <= {*names}:
            raise DataError(
                f"{path}: each record has two chats to compare, and a scenario is one. Read those of one side with "
                "kind: openai_messages and column: conversation_a"
            )
        if {"parent_id", "message_id"} <= {*names}:
            raise DataError(
                f"{path}: each row is one message of a tree with several replies to one message. Read the file of "
                "trees instead, with kind: openai_messages"
            )
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
    # several spans are one chat, so that a trace has fewer scenarios than a reader of single records finds
    return max(scores, key=lambda score: (score[0] > 0 and isinstance(score[1], TraceSource), score[0]))[1]


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
    if (kind := _format(path)) not in ("jsonl", "json"):
        return [{"kind": kind, **place, **table} for table in _tables(names, path)]
    place |= {} if (inside := _place_of_records(path)) is None else {"records": inside}
    pages = () if inside is None else _keys(read_objects(path))
    return [
        *({"kind": desk, "path": str(path)} for desk, keys in PAGES.items() if {*keys} & {*pages}),
        *({"kind": chat, **place, **more} for chat, more in _chats(names) if inside is None or chat in KEYS),
        *({"kind": "openai_messages", **place, **more} for more in _lists_by_shape(path)),
        *({"kind": kind, **place, **table} for table in _tables(names, path)),
        *({"kind": "input_output", **place, **more} for more in _exchanges(path)),
    ]


def _format(path: Path) -> str:
    """Format of a file by its name, or if the name has no known suffix, by its first character.

    Raises `DataError` if the file is in no known format.
    """
    suffix = data_suffix(path)
    if suffix in _TABLES:
        return _TABLES[suffix]
    if suffix in _JSON:
        return _JSON[suffix]
    with open_json(path) as file:
        head = file.read(_HEAD).lstrip()
    if head.startswith((b"{", b"[")):
        first = None if head.startswith(b"[") else next(read_objects(path), None)
        return "json" if first is None or first.data is None else "jsonl"
    known = ", ".join((*_TABLES, *_JSON))
    raise DataError(
        f"{path}: scenarios and chats are read from files that end in {known}, or that are JSON, also compressed by "
        "gzip, bzip2, xz or Zstandard. Save a workbook as CSV, and write anything else as JSON lines with a list of "
        "messages in each line, see docs/logs.md"
    )


def _names(path: Path) -> list[str]:
    """Keys of the first records, or columns. Raises `DataError` if the file is in no known format."""
    if path.is_dir():
        return []
    kind = _format(path)
    if kind == "parquet":
        return ParquetRows(path).names
    if kind == "arrow":
        return ArrowFile(path).names
    if kind == "csv":
        rows = islice(read_rows(path, required=()), _LOOKED_AT)
        return list(dict.fromkeys(name for row in rows for name in row.cells))
    return _keys(read_objects(path, _place_of_records(path)))


def _keys(records: Iterator[SourceRecord]) -> list[str]:
    """Keys of the first records. Raises `DataError` with the reason of the first one if none of them can be read."""
    return list(dict.fromkeys(name for data in _readable(records) for name in data))


def _readable(records: Iterator[SourceRecord]) -> list[dict[str, Any]]:
    first = list(islice(records, _LOOKED_AT))
    readable = [record.data for record in first if record.data is not None]
    if first and not readable:
        raise DataError(f"{first[0].source}:{first[0].line} {first[0].problem}. Fix the file")
    return readable


def _first_records(path: Path) -> list[dict[str, Any]]:
    return _readable(read_objects(path, _place_of_records(path)))


def _place_of_records(path: Path) -> str | None:
    """Place of the list of records in a JSON document that is an object and not a record itself, or None.

    It is the only list of objects, or the only one with a usual name.
    """
    first = next(read_objects(path), None) if _format(path) == "json" else None
    if first is None or first.data is None or any(kind not in PAGES for kind, _ in _chats(list(first.data))):
        return None
    document = read_document(path)
    if not isinstance(document, dict) or document_items(path, document, None) is not None:
        return None
    places = list(_lists_of_objects(document))
    named = [place for place in places if place.rpartition(".")[2] in _RECORD_LISTS]
    return next((group[0] for group in (places, named) if len(group) == 1), None)


def _lists_of_objects(document: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Places of lists of objects that are not empty, in objects within objects. Lists of messages are left out."""
    for key, item in document.items():
        if isinstance(item, dict):
            yield from _lists_of_objects(item, f"{place}{key}.")
        elif isinstance(item, list) and item and all(isinstance(entry, dict) for entry in item) and not _shape(item):
            yield f"{place}{key}"


def _exchanges(path: Path) -> Iterator[dict[str, Any]]:
    """Names of the input, the output and the expected output of the first record, at its top or in an object."""
    record = next(iter(_first_records(path)), {})
    for prefix in ("", *(f"{name}." for name in _WRAPPERS if isinstance(record.get(name), dict))):
        known = (_INPUTS, _OUTPUTS) if not prefix else (_CHATS_AND_QUESTIONS, ANSWERS)
        inputs, outputs = ([name for name in names if _is_there(record, f"{prefix}{name}")] for names in known)
        expected = [f"{prefix}{name}" for name in EXPECTED if _is_there(record, f"{prefix}{name}")]
        expected += [name for name in EXPECTED if prefix and _is_there(record, name)]
        if not inputs or (not prefix and _is_read_otherwise(record, inputs[0], answered=bool(outputs or expected))):
            continue
        names = {"input": f"{prefix}{inputs[0]}", **({"expected": expected[0]} if expected else {})}
        others = [f"{prefix}{name}" for name in outputs if name != inputs[0] and f"{prefix}{name}" not in expected]
        if others:
            names["output"] = others[0]
        names |= _shape(parsed(value_at(record, names["input"]))) or {}
        names = {field: name for field, name in names.items() if field != name}
        yield {"names": names} if names else {}


def _is_read_otherwise(record: Mapping[str, Any], place: str, *, answered: bool) -> bool:
    """True if the input is a whole chat, with at most a label, or stands next to a question with its answer."""
    if _is_whole_chat(parsed(value_at(record, place))):
        return not any(_is_there(record, name) for name in {*_OUTPUTS, *EXPECTED} - {*_LABELS})
    return not answered and bool(_first([*record], _QUESTIONS) and _first([*record], _ANSWERS))


def _is_whole_chat(value: Any) -> bool:
    """True for messages of two speakers of which the second has the last word."""
    names = _shape(value)
    if names is None:
        return False
    speakers = [who for item in value if (who := item.get(names["role"])) not in ("system", "developer")]
    return bool(speakers[-1] != speakers[0])


def _is_there(record: Mapping[str, Any], place: str) -> bool:
    return parsed(value_at(record, place)) not in (None, "", [], {})


def _lists_by_shape(path: Path) -> Iterator[dict[str, Any]]:
    """Settings of a list of messages under a key, or with keys, that have no common name.

    {"chat_messages": [{"sender": "human", "text": "Hi"}, …]}
    → column chat_messages, names {role: sender, content: text}

    Only the list of a whole chat is taken. If a record has two lists, or if speakers of one role or answers below a
    message are all that the list has, another part of the record belongs to the chat.
    """
    record = next(iter(_first_records(path)), {})
    parts = _PARTS_OF_CHATS if {*_INPUTS, *QUESTIONS} & {*record} else ()
    whole = {key for key in _INPUTS if key in record and _is_read_otherwise(record, key, answered=True)}
    shapes = [
        (key, names) for key, value in record.items() if (names := _shape(value)) and (key not in parts or key in whole)
    ]
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
    if {"span_attributes", "root_span_id"} <= {*names}:
        yield "braintrust", {}
    if "op_name" in names:
        yield "weave", {}
    if any(name == "attributes" or name.startswith("attributes.") for name in names):
        yield "openinference", {}
    if {"traces", "observations", "trace_id", "traceId", "sessionId", "session_id"} & {*names}:
        yield "langfuse", {}
    if "conversations" in names:
        yield "sharegpt", {}
    if {"message_tree_id", "prompt"} <= {*names}:
        yield "openai_messages", {}
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
    if _format(path) not in ("jsonl", "json"):
        for kind, more in _chats(names):
            if kind in KEYS:
                yield {"chat": {"kind": kind, **more}}
        if "input" in names and _first(names, (*EXPECTED, "output")):
            expected = _first(names, EXPECTED)
            renamed = {} if expected in (None, "expected") else {"expected": expected}
            yield {"chat": {"kind": "input_output", **({"names": renamed} if renamed else {})}}
    group, speaker, text = (_first(names, known) for known in (_GROUPS, _SPEAKERS, _TEXTS))
    if group and speaker and text:
        order = _first(names, _ORDERS)
        yield {"messages": {"group_by": group, "speaker": speaker, "text": text, **({"order": order} if order else {})}}
    question = _first(names, (*_QUESTIONS, *_QUESTIONS_LAST))
    if question and not {*_EARLIER} & {*names} and not _are_messages(names):
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
