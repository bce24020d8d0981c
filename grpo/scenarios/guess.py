"""Guess the settings of a source from its file.

The names of its keys or columns give candidates. The first records are read with each candidate, and the candidate that
gives the most scenarios is shown, or a kind of traces if it reads the file. This is only a look before a run: in a run
nothing is guessed, because its config states the kind.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from grpo.config.chats import KEYS
from grpo.config.scenarios import Source, TraceSource
from grpo.data_errors import error_text, excerpt, read_guarded
from grpo.errors import DataError, GRPOError
from grpo.parquet_rows import ParquetRows
from grpo.scenarios.first_records import characters, first_records
from grpo.scenarios.guess_tables import (
    ANSWER_NAMES,
    EARLIER,
    QUESTION_NAMES,
    called_questions,
    chat_kinds,
    choices_unread,
    find_choices,
    first_name,
    is_list_of_objects,
    is_whole_chat,
    list_by_value,
    lists_of_objects,
    speaker_names,
    table_settings,
    trace_kinds,
    unknown_names,
)
from grpo.scenarios.ingest import QUARANTINE_FILE, SCENARIOS_FILE, ingest
from grpo.scenarios.message_columns import (
    find_group,
    find_messages,
    find_verdicts,
    leaves,
    repeats,
)
from grpo.scenarios.readers.exports.chat_programs import are_of_programs
from grpo.scenarios.readers.exports.help_desks import PAGES
from grpo.scenarios.readers.exports.record_file import column_of_chats, has_lines, read_objects
from grpo.scenarios.readers.files.arrow_file import ArrowFile
from grpo.scenarios.readers.files.csv_file import read_rows
from grpo.scenarios.readers.files.json_file import document_items
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.readers.files.places import parsed, value_at
from grpo.scenarios.readers.files.source_files import TABLES, data_suffix, open_json, read_document
from grpo.scenarios.readers.messages.logged_requests import is_exchange
from grpo.scenarios.readers.traces.exchanges import ANSWERS, EXPECTED, QUESTIONS
from grpo.scenarios.records import SourceRecord
from grpo.storage.files import files_below

_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")
"""Files in a folder of `Dataset.save_to_disk`."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HEAD = 4096  # bytes that are searched for the first character of a file
_TRIED = _LOOKED_AT = 200  # records that are read with each candidate, and searched for their keys and values
_JSON = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
_PARTS_OF_CHATS = (*EARLIER, "input", "inputs", "output", "outputs")
_INPUTS = (
    "input",
    "inputs",
    "user_input",
    "attributes.llm.input_messages",
    "prompt.raw",
    "arguments.gen_args_0.arg_0",
    "data",
)
_LABELS = ("label", "target", "reference")
"""Names of the expected output that are also names of a class of the whole record."""
_OUTPUTS = ("output", "outputs", "attributes.llm.output_messages", "response.output")
_RECORD_LISTS = ("records", "rows", "items", "examples", "samples", "results", "data", "conversations", "simulations")
_WRAPPERS = ("fields", "item", "data", "doc", "example")
"""Objects that hold the input of a record and what belongs to it, as Argilla, OpenAI's evals and Label Studio have."""
_SPEAKERS = {"role", "speaker"}
_CHATS_AND_QUESTIONS = ("messages", "chat", "conversation", "dialogue", *QUESTIONS)


def guess_sources(path: Path) -> tuple[Source, ...]:
    """The source of a file, or one for each file of a folder, in which the files of one format have the same settings.

    Raises `DataError` as `guess_source`, if a folder has no file that can be read, and for an id on the hub.
    """
    if not path.exists() and _HUB_ID.fullmatch(str(path)) and data_suffix(path) not in {**TABLES, **_JSON}:
        raise DataError(
            f"{path} is not a file here. If it is a data set on the Hugging Face hub, a config reads it with "
            f"`kind: hub` and `id: {path}` under scenarios.sources"
        )
    if not path.is_dir() or any((path / name).exists() for name in _SAVED):
        return (guess_source(path),)
    parts = [part for part in files_below(path) if data_suffix(part) in {**TABLES, **_JSON}]
    if not parts:
        raise DataError(
            f"{path} is a folder without a file that ends in {', '.join((*TABLES, *_JSON))}, and not one of "
            "Dataset.save_to_disk. Name a file"
        )
    firsts = {data_suffix(part): part for part in reversed(parts)}
    sources = {suffix: guess_source(part) for suffix, part in firsts.items()}
    return tuple(sources[data_suffix(part)].model_copy(update={"path": str(part)}) for part in parts)


def guess_source(path: Path) -> Source:
    """The source that reads the most records of a file.

    Raises `DataError` if the file is missing or in no known format, or if no candidate reads a record.
    """
    candidates = list(read_guarded(lambda: _candidates(path), str(path)))
    if not candidates:
        raise DataError(unknown_names(path, _names(path), _rows(path)))
    scores = []
    reasons = []
    with tempfile.TemporaryDirectory(prefix="grpo-guess-") as scratch:
        tables = Path(scratch) / SCENARIOS_FILE, Path(scratch) / QUARANTINE_FILE
        for candidate in candidates:
            try:
                source = _SOURCE.validate_python(candidate)
                counts = ingest((source,), *tables, max_quarantined_fraction=1.0, most=_TRIED)
                scores.append((counts.scenarios, source))
            except ValidationError as error:
                reasons.append(f"{candidate['kind']}: {error.errors()[0]['msg']}")
            except GRPOError as error:
                reasons.append(f"{candidate['kind']}: {error_text(error)}")
    if not scores:
        rows = _rows(path)
        if repeats(rows, find_group(rows)) and find_messages(rows) is None:
            raise DataError(unknown_names(path, _names(path), rows))
        shown = excerpt("; ".join(dict.fromkeys(reasons)), 1000)
        raise DataError(f"{path} cannot be read as it is: {shown}. See docs/logs.md")
    # several spans are one chat, so that a trace has fewer scenarios than a reader of single records finds
    best = max(scores, key=lambda score: (score[0] > 0 and isinstance(score[1], TraceSource), score[0]))[1]
    asks = "user_responses" in getattr(best, "columns", {}) or best.kind in ("prompt_completion", "alpaca")
    if asks and (choices := find_choices(_rows(path))):
        raise DataError(choices_unread(path, choices))
    return best


def unread_columns(source: Source) -> list[str]:
    """Keys or columns of a source's file that its settings do not name. They are not in its scenarios."""
    mapped, rows = getattr(source, "columns", {}), getattr(source, "messages", None)
    if not mapped and rows is None:
        return []
    read = {*mapped.values(), *((*rows.places, *rows.where, *rows.without) if rows else ())}
    inside = {place.partition(".")[0] for place in read}
    return [name for name in _names(Path(source.model_dump()["path"])) if name not in read | inside]


def as_yaml(*sources: Source) -> str:
    """Settings of sources as they stand in a config, without defaults."""
    settings = [{"kind": source.kind, **source.model_dump(exclude_defaults=True, mode="json")} for source in sources]
    return yaml.safe_dump({"scenarios": {"sources": settings}}, sort_keys=False, allow_unicode=True)


def _candidates(path: Path) -> list[dict[str, Any]]:
    place = {"path": str(path)}
    if path.is_dir():
        ways: tuple[dict[str, Any], ...] = ({}, {"chat": {}}, {"chat": {"kind": "alpaca"}})
        return [{"kind": "huggingface", **place, **way} for way in ways]
    if programs := _chats_of_a_program(path):
        return [{"kind": "openai_messages", **place, **settings} for settings in programs]
    rows = _rows(path)
    names = [name for name in _names(path) if name not in find_verdicts(rows)]
    if (kind := _format(path)) not in ("jsonl", "json"):
        chats = [(chat, more) for chat, more in (*called_questions(rows), *chat_kinds(names)) if chat in KEYS]
        tables = [{"kind": kind, **place, **table} for table in table_settings(names, rows, chats)]
        return [*({"kind": trace, **place} for trace in trace_kinds(names)), *tables]
    place |= {} if (inside := _place_of_records(path)) is None else {"records": inside}
    tables = [{"kind": kind, **place, **table} for table in table_settings(names, rows)]
    if any("reply" in table.get("messages", {}) for table in tables):
        return tables
    pages = () if inside is None else _keys(read_objects(path))
    return [
        *({"kind": chat, **place, **more} for chat, more in called_questions(_first_records(path))),
        *({"kind": "input_output", **place, **more} for more in _answered_chats(path)),
        *({"kind": desk, "path": str(path)} for desk, keys in PAGES.items() if {*keys} & {*pages}),
        *({"kind": chat, **place, **more} for chat, more in chat_kinds(names) if inside is None or chat in KEYS),
        *({"kind": "openai_messages", **place} for record in _first_records(path)[:1] if is_exchange(record)),
        *({"kind": "openai_messages", **place, **more} for more in _lists_byspeaker_names(path)),
        *tables,
        *({"kind": "input_output", **place, **more} for more in _exchanges(path)),
        *({"kind": "openai_messages", **place, **more} for more in _lists_by_value(path)),
    ]


def _chats_of_a_program(path: Path) -> list[dict[str, Any]]:
    """Settings of an export of a chat program, to which most of its records belong. Empty for every other file."""
    records = _readable(read_objects(path, chats=True)) if _format(path) in ("jsonl", "json") else []
    if are_of_programs(records):
        return [{}]
    places = lists_of_objects(records[0]) if len(records) == 1 else ()
    return [{"records": place} for place in places if are_of_programs(value_at(records[0], place))][:1]


def _format(path: Path) -> str:
    """Format of a file by its name, or if the name has no known suffix, by its first character.

    Raises `DataError` if the file is in no known format.
    """
    suffix = data_suffix(path)
    if suffix in TABLES:
        return TABLES[suffix]
    if suffix in _JSON:
        return _JSON[suffix]
    with open_json(path) as file:
        head = file.read(_HEAD).lstrip()
    if head.startswith((b"{", b"[")):
        first = None if head.startswith(b"[") else next(read_objects(path), None)
        return "json" if first is None or first.data is None else "jsonl"
    known = ", ".join((*TABLES, *_JSON))
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
        return list(dict.fromkeys(chain.from_iterable(_csv_rows(path))))
    return _keys(_objects(path))


def _rows(path: Path) -> list[dict[str, Any]]:
    """The first records with their values by place. Empty for a folder."""
    if path.is_dir():
        return []
    kind = _format(path)
    if kind == "csv":
        return [leaves(cells) for cells in _csv_rows(path)]
    if kind in ("parquet", "arrow"):
        table = ArrowFile(path).read(cells=True) if kind == "arrow" else read_parquet(path, columns=_names(path))
        cells = first_records((record.data for record in table), _LOOKED_AT)
        return [leaves(data) for data in cells if data is not None]
    return [leaves(record) for record in _first_records(path)]


def _csv_rows(path: Path) -> list[dict[str, str]]:
    """Cells of the first rows. Raises `DataError` with the reason of the first one if none of them can be read."""
    rows = list(first_records(read_rows(path, required=()), _LOOKED_AT, size=lambda row: characters(row.cells)))
    if rows and all(row.problem for row in rows):
        raise DataError(f"{path}:{rows[0].line} {rows[0].problem}. Fix the file")
    return [row.cells for row in rows if row.problem is None]


def _keys(records: Iterator[SourceRecord]) -> list[str]:
    """Keys of the first records. Raises `DataError` with the reason of the first one if none of them can be read."""
    return list(dict.fromkeys(name for data in _readable(records) for name in data))


def _readable(records: Iterator[SourceRecord]) -> list[dict[str, Any]]:
    first = next(records, None)
    if first is None:
        return []
    data = first_records((record.data for record in chain([first], records)), _LOOKED_AT)
    readable = [record for record in data if record is not None]
    if not readable:
        raise DataError(f"{first.source}:{first.line} {first.problem}. Fix the file")
    return readable


def _first_records(path: Path) -> list[dict[str, Any]]:
    return _readable(_objects(path))


def _objects(path: Path) -> Iterator[SourceRecord]:
    return read_objects(path, _place_of_records(path), chats=True)


def _place_of_records(path: Path) -> str | None:
    """Place of the list of records in a JSON document that is an object and not a record itself, or None.

    It is the only list of objects, or the only one with messages of several chats, or the only one with a usual name.
    """
    is_document = _format(path) == "json" and not has_lines(path)
    first = next(read_objects(path, chats=True), None) if is_document else None
    if first is None or first.data is None or any(kind not in PAGES for kind, _ in chat_kinds(list(first.data))):
        return None
    document = read_document(path)
    if not isinstance(document, dict) or document_items(path, document, None) is not None:
        return None
    if any(
        find_messages(inner) and find_group(inner) is None
        for items in leaves(document).values()
        if is_list_of_objects(items) and (inner := [leaves(item) for item in items])
    ):
        return None
    places = list(lists_of_objects(document))
    named = [place for place in places if place.rpartition(".")[2] in _RECORD_LISTS]
    of_chats = [place for place in places if column_of_chats(value_at(document, place)) is not None]
    return next((group[0] for group in (places, of_chats, named) if len(group) == 1), None)


def _exchanges(path: Path) -> Iterator[dict[str, Any]]:
    """Names of the input, the output and the expected output of the first record, at its top or in an object."""
    record = next(iter(_first_records(path)), {})
    if _SPEAKERS & {*record}:  # a message of one speaker is not a question
        return
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
        names |= speaker_names(parsed(value_at(record, names["input"]))) or {}
        names = {field: name for field, name in names.items() if field != name}
        yield {"names": names} if names else {}


def _answered_chats(path: Path) -> Iterator[dict[str, Any]]:
    """Names of a chat and of what its next reply should be, which stands next to it.

    {"messages": […], "ground_truth": "4"}   {"prompt": […], "reward_model": {"ground_truth": "4"}}
    """
    record = next(iter(_first_records(path)), {})
    chat = next((name for name in ("messages", "prompt") if is_list_of_objects(parsed(record.get(name)))), None)
    labels = ("reward_model.ground_truth", *(name for name in EXPECTED if name not in _LABELS))
    expected = next((name for name in labels if _is_there(record, name)), None)
    names = {"input": chat, "expected": expected}
    if "input" in record:  # Inspect's samples have a target next to the messages that end with a model's reply
        names = {"expected": "target" if chat is not None and _is_there(record, "target") else None}
    if all(names.values()):
        yield {"names": {field: name for field, name in names.items() if field != name}}


def _is_read_otherwise(record: Mapping[str, Any], place: str, *, answered: bool) -> bool:
    """True if the input is a logged request, or a whole chat with at most a label, or stands next to a question with
    its answer."""
    if is_exchange({place: value_at(record, place)}):
        return True
    if is_whole_chat(parsed(value_at(record, place))):
        return not any(_is_there(record, name) for name in {*_OUTPUTS, *EXPECTED} - {*_LABELS})
    return not answered and bool(first_name([*record], QUESTION_NAMES) and first_name([*record], ANSWER_NAMES))


def _is_there(record: Mapping[str, Any], place: str) -> bool:
    return parsed(value_at(record, place)) not in (None, "", [], {})


def _lists_byspeaker_names(path: Path) -> Iterator[dict[str, Any]]:
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
        (key, names)
        for key, value in record.items()
        if (names := speaker_names(value)) and (key not in parts or key in whole)
    ]
    if len(shapes) == 1:
        ((key, names),) = shapes
        yield {"column": key, "names": {field: name for field, name in names.items() if field != name}}


def _lists_by_value(path: Path) -> Iterator[dict[str, Any]]:
    record = next(iter(_first_records(path)), {})
    return list_by_value(record, _PARTS_OF_CHATS if {*_INPUTS, *QUESTIONS} & {*record} else ())
