"""Fields of a scenario from the columns of a table that are mapped to them.

columns: {id: ticket, user_responses: question, "metadata.category": topic}

ticket 17, question "Where is my parcel?", topic "delivery", agent "Ann"
→ id "17", user_responses ["Where is my parcel?"], metadata {category: "delivery"}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo.data_errors import excerpt
from grpo.errors import DataError
from grpo.scenario import Expected, Metadata, Scenario
from grpo.scenarios.readers.files.filled_nulls import without_filled_nulls
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.readers.files.places import parsed
from grpo.scenarios.readers.messages.transcripts import refuse_transcript
from grpo.scenarios.records import SourceRecord, convert_record, record_name

_TEXTS = ("user_responses", "expected.responses", "expected.facts", "expected.assertions")
"""Fields that are lists of texts. A text that is not a JSON list becomes a list with this one text."""
_OBJECTS = (
    "tools",
    "world",
    "expected",
    "metadata",
    "expected.calls",
    "expected.state",
    "expected.required_documents",
    "expected.reward_basis",
)
"""Fields that must be JSON if they are given as text."""
_FIELDS = {
    *Scenario.model_fields,
    *(f"expected.{name}" for name in Expected.model_fields),
    *(f"metadata.{name}" for name in Metadata.model_fields),
}
_SPEAKERS = {"role", "from"}
"""Keys of a message. A list of messages is not what a user says."""
_WORLD = "world."
"""Prefix of the user's own columns. They become part of the world, so that rewards and environments can read them."""
_SHOWN = 300  # characters of a list of columns


def check_fields(path: Path, mapped: Mapping[str, str]) -> None:
    """Raise `DataError` if a field is mapped that no scenario has."""
    if unknown := [name for name in mapped if name not in _FIELDS and not (name.startswith(_WORLD) and name != _WORLD)]:
        raise DataError(
            f"{path}: columns has {unknown[0]}, which is not a field of a scenario. Fields are "
            f"{', '.join(sorted(_FIELDS))}, and world.NAME is a column of your own"
        )


def check_present(path: Path, wanted: Iterable[str], present: Sequence[str]) -> None:
    """Raise `DataError` if a wanted column is missing."""
    missing = [column for column in wanted if column not in present]
    if missing:
        raise DataError(
            f"{path} has no column {', '.join(missing)}. It has {excerpt(', '.join(present), _SHOWN)}. "
            "Correct the source's columns"
        )


def map_columns(path: Path, records: Iterable[SourceRecord], mapped: Mapping[str, str]) -> Iterator[SourceRecord]:
    """Replace the data of each record, cells by column, with the mapped fields. Empty cells are left out.

    A record without an id is named by its file, place and digest. If a record lacks a column, it has a problem.
    """
    for record in records:
        yield convert_record(record, partial(_fields, record_name(path, record), mapped))


def _fields(name: str, mapped: Mapping[str, str], cells: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, **map_cells(mapped, cells)}


def map_cells(mapped: Mapping[str, str], cells: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the mapped columns, without empty cells. Raises `ValueError` if the record lacks a column."""
    fields: dict[str, Any] = {}
    for field, column in mapped.items():
        if column not in cells:
            raise ValueError(f"no column {column}: the record has {excerpt(', '.join(cells), _SHOWN) or 'none'}")
        if cells[column] is None or cells[column] == "":
            continue
        section, _, inner = field.partition(".")
        value = _value(field, column, cells[column])
        if inner:
            fields.setdefault(section, {})[inner] = value
        else:
            fields[section] = {**value, **fields.get(section, {})} if isinstance(value, dict) else value
    return without_filled_nulls(fields)


def merge_fields(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields, replaced by `others` if both have them. The entries of both `metadata` are merged."""
    merged = {**fields, **others}
    if isinstance(others.get("metadata"), dict):
        merged["metadata"] = {**fields.get("metadata", {}), **others["metadata"]}
    return merged


def _value(field: str, column: str, cell: Any) -> Any:
    """Value of a cell in the type of its field. A value for the world stays unchanged."""
    if field.startswith(_WORLD):
        return cell
    if field in _TEXTS:
        if isinstance(cell, dict):
            raise ValueError(f"column {column} is not a text: it has an object with {excerpt(', '.join(cell), _SHOWN)}")
        if field == "user_responses" and isinstance(cell, str):
            refuse_transcript(cell, f"column {column}")
        texts = _texts(cell, column)
        if field == "user_responses":
            _refuse_messages(texts, column)
        return texts
    if field in _OBJECTS:
        return cell_value(cell, f"column {column} is") if isinstance(cell, str) else cell
    return str(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else cell


def _refuse_messages(texts: Any, column: str) -> None:
    """Raise `ValueError` if what the user says is a list of messages, also as the text of one."""
    (messages,) = map(parsed, texts) if isinstance(texts, list) and len(texts) == 1 else (texts,)
    first = messages[0] if isinstance(messages, list) and messages else None
    if isinstance(first, dict) and _SPEAKERS & first.keys():
        raise ValueError(
            f"column {column} is not a text: it has a list of messages with {excerpt(', '.join(first), _SHOWN)}. Read "
            f"the rows as chats, e.g. by chat: {{kind: openai_messages, column: {column}}} instead of columns"
        )


def _texts(cell: Any, column: str) -> Any:
    if isinstance(cell, bytes):
        raise ValueError(f"column {column} is not a text: it has {len(cell)} bytes that are not UTF-8")
    if not isinstance(cell, str):
        return cell if isinstance(cell, list) else [str(cell)]
    if cell.lstrip().startswith("["):
        try:
            value = cell_value(cell, f"column {column} is")
        except ValueError:
            return [cell]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
    return [cell]
