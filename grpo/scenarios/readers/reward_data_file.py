"""Preference pairs and labelled replies in a user's file, by the columns in the settings.

layout text        prompt "2 + 2?", chosen "4", rejected "5"
layout messages    prompt [user "2 + 2?"], chosen [assistant "4"], rejected [assistant "5"]
                   without a prompt: chosen [user "2 + 2?", assistant "4"], rejected [user "2 + 2?", assistant "5"]
                   ShareGPT: prompt (conversations) [human "2 + 2?"], chosen {from gpt, value "4"}, rejected {…}
                   OpenAI: prompt (input) {messages: […]}, chosen (preferred_output) […], rejected (…) […]
labels             text "4", label "right", and a prompt if there is one
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from grpo.artifacts import local_path
from grpo.config.chats import ChatColumns
from grpo.config.rewards import LabelFile, PairFile
from grpo.messages import Message
from grpo.scenarios.readers.files.csv_file import read_cells
from grpo.scenarios.readers.files.json_cells import cell_value
from grpo.scenarios.readers.files.json_file import read_json, read_jsonl
from grpo.scenarios.readers.files.parquet import read_parquet
from grpo.scenarios.readers.messages.chat_dialects import openai_messages
from grpo.scenarios.readers.messages.openai_format import parse_messages
from grpo.scenarios.readers.messages.transcripts import refuse_transcript
from grpo.scenarios.records import SourceRecord, convert_records


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow")

    def cell(self, column: str) -> Any:
        """Value of a column. Raises `ValueError` if the column is missing or empty in this record."""
        cells = self.model_extra or {}
        if cells.get(column) in (None, ""):
            raise ValueError(f"column {column} is missing or empty: the record has {', '.join(cells) or 'no column'}")
        return cells[column]


_NAMES = ChatColumns()
"""The common names of keys and speakers."""


def read_pair_records(settings: PairFile) -> Iterator[SourceRecord]:
    """Read the records of a file as preference pairs.

    Raises `DataError` if the file is missing or broken, or lacks one of the columns.
    """
    columns = [settings.chosen, settings.rejected, *_columns(settings)]
    return convert_records(_records(settings, columns), _Row, _pair(settings))


def read_label_records(settings: LabelFile) -> Iterator[SourceRecord]:
    """Read the records of a file as labelled replies.

    Raises `DataError` if the file is missing or broken, or lacks one of the columns.
    """
    columns = [settings.reply, settings.label, *_columns(settings, settings.score)]
    return convert_records(_records(settings, columns), _Row, _label(settings))


def _columns(settings: PairFile | LabelFile, *others: str | None) -> list[str]:
    names = (*others, *_prompt_columns(settings), settings.system)
    names = (*names, settings.id, settings.group, settings.category, settings.split)
    return [name for name in names if name is not None]


def _prompt_columns(settings: PairFile | LabelFile) -> tuple[str, ...]:
    return (settings.prompt,) if isinstance(settings.prompt, str) else settings.prompt or ()


def _records(settings: PairFile | LabelFile, columns: Sequence[str]) -> Iterator[SourceRecord]:
    path = local_path(settings.path)
    if settings.kind == "csv":
        return read_cells(path, settings.csv, required=columns)
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
    cells = row.model_extra or {}
    system = None if settings.system is None else cells.get(settings.system)
    before = [Message(role="system", content=_string(str(settings.system), system))] if system else []
    columns = _prompt_columns(settings)
    if not columns:
        return before
    if settings.layout == "messages":
        return [*before, *_messages(columns[0], row.cell(columns[0]))]
    first, *others = columns
    texts = [_string(first, row.cell(first)), *(_string(name, cells[name]) for name in others if cells.get(name))]
    refuse_transcript(texts[0], f"column {first}")
    return [*before, Message(role="user", content="\n\n".join(texts))]


def _replies(row: _Row, column: str, settings: PairFile | LabelFile) -> list[Message]:
    """Messages of a cell. The last one must be the agent's reply."""
    value = row.cell(column)
    if settings.layout == "text":
        return [Message(role="assistant", content=_string(column, value))]
    messages = _messages(column, value)
    if not messages or messages[-1].role != "assistant":
        raise ValueError(f"no reply at the end of column {column}: its last message must be the assistant's")
    if settings.prompt is not None and len(messages) > 1:
        raise ValueError(f"column {column} has several messages. If prompt is set, it must have only the reply")
    return messages


def _messages(column: str, value: Any) -> list[Message]:
    if isinstance(value, str):
        value = cell_value(value, f"column {column} is")
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        if unread := [name for name in ("tools", "functions") if value.get(name)]:
            raise ValueError(f"{unread[0]} in a pair: column {column} has {unread[0]}, which a pair cannot keep")
        value = value["messages"]
    try:
        logged = parse_messages(openai_messages([value] if isinstance(value, Mapping) else value, _NAMES))
    except ValueError as error:
        raise ValueError(f"column {column} holds no messages: {error}") from error
    if any(message.tool_calls or message.role == "tool" for message in logged):
        raise ValueError(f"tool calls in a pair: column {column} has some, and preference pairs have only texts")
    return [Message(role=message.role, content=message.content) for message in logged]


def _string(column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text in column {column}: {type(value).__name__}. Lists of messages need layout messages")
    return value


def _text(value: Any) -> str:
    """A label or id as text: 1 is "1", true is "true"."""
    return value if isinstance(value, str) else json.dumps(value)
