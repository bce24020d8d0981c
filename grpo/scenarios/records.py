"""From records as somebody published them to records in the project's own fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grpo.errors import DataError
from grpo.scenarios.data_errors import error_text, excerpt, first_validation_error, problem_text, try_call
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.scenario import Difficulty, normalize

Shape = TypeVar("Shape", bound=BaseModel)


def convert_records(
    records: Iterable[SourceRecord], shape: type[Shape], fields: Callable[[Shape, int], dict[str, Any]]
) -> Iterator[SourceRecord]:
    """Check each record against its published shape and give it the fields of what it becomes.

    `fields` takes the checked record and its line; what it raises becomes the record's problem. What could not be read
    stays as it is.
    """
    for record in records:
        yield convert_record(record, partial(_fill, shape, fields, record.line))


def _fill(
    shape: type[Shape], fields: Callable[[Shape, int], dict[str, Any]], line: int, data: dict[str, Any]
) -> dict[str, Any]:
    return fields(shape.model_validate(data), line)


def convert_record(record: SourceRecord, fields: Callable[[dict[str, Any]], dict[str, Any]]) -> SourceRecord:
    """The record with the fields of its data, or with what `fields` raised as its problem."""
    if record.data is None:
        return record
    raw, given = record.raw or excerpt(record.data), record.data
    data = try_call(lambda: fields(given))
    if isinstance(data, Exception):
        problem = error_text(data) if type(data) is ValueError else problem_text(data, "not as published")
        return SourceRecord(source=record.source, line=record.line, data=None, raw=raw, problem=problem)
    return SourceRecord(source=record.source, line=record.line, data=data, raw=raw)


def read_all_records(records: Iterable[SourceRecord], shape: type[Shape]) -> list[Shape]:
    """What all records of a source need, for example its schema: a fault in it stops the reading.

    Raises `DataError` that names the place.
    """
    found = []
    for record in records:
        problem = record.problem
        try:
            found.append(shape.model_validate(record.data or {}))
        except ValidationError as error:
            problem = problem or first_validation_error(error)
        if problem is not None:
            raise DataError(f"{record.source}:{record.line}: {problem}; fetch the published file again")
    return found


def declare_splits(train: Iterable[SourceRecord], heldout: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
    """The training part of a source, then its held-out part, each scenario with its split.

    A held-out scenario whose user says or wants the same as one of the training part has leaked: its split is left
    open, and the split puts it where its like is.
    """
    seen = set()
    for record in train:
        if record.data is not None:
            seen.add(_text(record.data))
            record.data["split"] = "train"
        yield record
    for record in heldout:
        if record.data is not None and _text(record.data) not in seen:
            record.data["split"] = "heldout"
        yield record


def difficulty_by_count(count: int, *, easy: int, medium: int) -> Difficulty:
    """Difficulty by a number of steps or calls: up to `easy`, up to `medium`, more."""
    return "easy" if count <= easy else "medium" if count <= medium else "hard"


def _text(data: dict[str, Any]) -> str:
    """What `Scenario.text` will be."""
    return normalize("\n".join((*data.get("user_responses", ()), data.get("goal", ""))))
