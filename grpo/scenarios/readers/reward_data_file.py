"""Preference pairs and labelled replies in a user's file, by the columns in the settings.

layout text        prompt "2 + 2?", chosen "4", rejected "5"
layout messages    prompt [user "2 + 2?"], chosen [assistant "4"], rejected [assistant "5"]
                   without a prompt: chosen [user "2 + 2?", assistant "4"], rejected [user "2 + 2?", assistant "5"]
labels             text "4", label "right", and a prompt where there is one
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from grpo.artifacts import local_path
from grpo.config.rewards import LabelFile, PairFile
from grpo.messages import Message, Role
from grpo.scenarios.data_errors import first_validation_error
from grpo.scenarios.readers.csv_file import read_cells
from grpo.scenarios.readers.json_file import read_json, read_jsonl
from grpo.scenarios.readers.parquet import read_parquet
from grpo.scenarios.records import SourceRecord, convert_records


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow")

    def cell(self, column: str) -> Any:
        """Value of a column; raises `ValueError` where the column is missing or empty in this record."""
        cells = self.model_extra or {}
        if cells.get(column) in (None, ""):
            raise ValueError(f"nothing in column {column}: the record has {', '.join(cells) or 'no column'}")
        return cells[column]


class _ChatMessage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    role: Role
    content: str


_MESSAGES = TypeAdapter(list[_ChatMessage])


def read_pair_records(settings: PairFile) -> Iterator[SourceRecord]:
    """Read the records of a file as preference pairs.

    Raises `DataError` for a file that is missing or broken, or lacks one of the columns.
    """
    columns = [settings.chosen, settings.rejected, *_columns(settings, settings.prompt)]
    return convert_records(_records(settings, columns), _Row, _pair(settings))


def read_label_records(settings: LabelFile) -> Iterator[SourceRecord]:
    """Read the records of a file as labelled replies.

    Raises `DataError` for a file that is missing or broken, or lacks one of the columns.
    """
    columns = [settings.reply, settings.label, *_columns(settings, settings.prompt, settings.score)]
    return convert_records(_records(settings, columns), _Row, _label(settings))


def _columns(settings: PairFile | LabelFile, *others: str | None) -> list[str]:
    names = (*others, settings.id, settings.group, settings.category, settings.split)
    return [name for name in names if name is not None]


def _records(settings: PairFile | LabelFile, columns: Sequence[str]) -> Iterator[SourceRecord]:
    path = local_path(settings.path)
    if settings.kind == "csv":
        return read_cells(path, required=columns)
    if settings.kind == "parquet":
        return read_parquet(path, columns=columns)
    return read_jsonl(path) if settings.kind == "jsonl" else read_json(path)


def _pair(settings: PairFile) -> Callable[[_Row, int], dict[str, Any]]:
    def fields(row: _Row, line: int) -> dict[str, Any]:
        chosen, rejected = (_replies(row, column, settings) for column in (settings.chosen, settings.rejected))
        if chosen[:-1] != rejected[:-1]:
            raise ValueError("conversations differ before the last message")
        prompt = [*_prompt(row, settings), *chosen[:-1]]
        return {**_common(row, line, settings, prompt), "chosen": chosen[-1], "rejected": rejected[-1]}

    return fields


def _label(settings: LabelFile) -> Callable[[_Row, int], dict[str, Any]]:
    def fields(row: _Row, line: int) -> dict[str, Any]:
        messages = _replies(row, settings.reply, settings)
        label = _text(row.cell(settings.label))
        if settings.scores and label not in settings.scores:
            raise ValueError(f"label without a score: {label!r}, scores has {', '.join(settings.scores)}")
        score = settings.scores.get(label) if settings.score is None else row.cell(settings.score)
        prompt = [*_prompt(row, settings), *messages[:-1]]
        return {**_common(row, line, settings, prompt), "reply": messages[-1], "label": label, "score": score}

    return fields


def _common(row: _Row, line: int, settings: PairFile | LabelFile, prompt: Sequence[Message]) -> dict[str, Any]:
    name = Path(settings.path).name
    context = json.dumps([[message.role, message.content] for message in prompt])
    group = f"{name}-{hashlib.sha256(context.encode()).hexdigest()[:16]}" if prompt else f"{name}-{line}"
    return {
        "id": f"{name}-{line}" if settings.id is None else _text(row.cell(settings.id)),
        "group": group if settings.group is None else _text(row.cell(settings.group)),
        "prompt": prompt,
        "category": "general" if settings.category is None else _text(row.cell(settings.category)),
        "source": name,
        "licence": settings.licence,
        "split": None if settings.split is None else (row.model_extra or {}).get(settings.split) or None,
    }


def _prompt(row: _Row, settings: PairFile | LabelFile) -> list[Message]:
    if settings.prompt is None:
        return []
    value = row.cell(settings.prompt)
    if settings.layout == "messages":
        return _messages(settings.prompt, value)
    return [Message(role="user", content=_string(settings.prompt, value))]


def _replies(row: _Row, column: str, settings: PairFile | LabelFile) -> list[Message]:
    """Messages of a cell, of which the last is the agent's reply."""
    value = row.cell(column)
    if settings.layout == "text":
        return [Message(role="assistant", content=_string(column, value))]
    messages = _messages(column, value)
    if not messages or messages[-1].role != "assistant":
        raise ValueError(f"no reply at the end of column {column}: its last message must be the assistant's")
    if settings.prompt is not None and len(messages) > 1:
        raise ValueError(f"several messages in column {column}: beside a prompt it holds the reply alone")
    return messages


def _messages(column: str, value: Any) -> list[Message]:
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError as error:
            raise ValueError(f"column {column} is not JSON: {error}") from error
    try:
        return [Message(role=item.role, content=item.content) for item in _MESSAGES.validate_python(value)]
    except ValidationError as error:
        raise ValueError(f"column {column} holds no messages: {first_validation_error(error)}") from error


def _string(column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text in column {column}: {type(value).__name__}; lists of messages need layout messages")
    return value


def _text(value: Any) -> str:
    """A label or id as text: 1 is "1", true is "true"."""
    return value if isinstance(value, str) else json.dumps(value)
