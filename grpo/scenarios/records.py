"""Records of a source: read at one place, and converted to the fields of a scenario or an item of reward data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grpo.data_errors import error_text, excerpt, first_validation_error, problem_text, try_call
from grpo.errors import DataError
from grpo.scenario import Difficulty, episode_start, normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """One record of a source. Exactly one of `data` and `problem` is None."""

    source: str
    """The file, folder or function that it was read from."""
    line: int
    """Place in the source: its first line in a text file, its number (from 1) elsewhere."""
    data: dict[str, Any] | None
    """The fields of a scenario, not validated."""
    raw: str = ""
    """The record's text in a text source. Empty if `data` has the same content."""
    problem: str | None = None
    """Reason why the record cannot be read. The text before a colon is the same for all records with this reason."""
    ignored: tuple[str, ...] = ()
    """Parts of the record that are not in `data`, each with the reason."""


Converted = dict[str, Any] | tuple[dict[str, Any], tuple[str, ...]]
"""Fields that a record is converted to. If parts were left out, these as well."""


def record_name(path: Path, record: SourceRecord) -> str:
    """Id of a record without an id: file, place and digest, so that files with the same name do not collide."""
    digest = hashlib.sha256(json.dumps(record.data, sort_keys=True, default=str).encode(errors="replace")).hexdigest()
    return f"{path.stem}-{record.line}-{digest[:6]}"


Published = TypeVar("Published", bound=BaseModel)
"""The fields of a record as its publisher writes them."""


def convert_records(
    records: Iterable[SourceRecord], published: type[Published], fields: Callable[[Published, int], dict[str, Any]]
) -> Iterator[SourceRecord]:
    """Validate each record as `published`, and replace its data with the fields that `fields` makes from it.

    `fields` takes the validated record and its line. If it raises an exception, that becomes the record's problem.
    Records that could not be read are passed on.
    """
    for record in records:
        yield convert_record(record, partial(_validated_fields, published, fields, record.line))


def _validated_fields(
    published: type[Published], fields: Callable[[Published, int], dict[str, Any]], line: int, data: dict[str, Any]
) -> dict[str, Any]:
    return fields(published.model_validate(data), line)


def convert_record(record: SourceRecord, fields: Callable[[dict[str, Any]], Converted]) -> SourceRecord:
    """The record with the fields of its data, or with the exception that `fields` raised as its problem."""
    if record.data is None:
        return record
    raw, original = record.raw or excerpt(record.data), record.data
    data = try_call(lambda: fields(original))
    if isinstance(data, Exception):
        problem = error_text(data) if type(data) is ValueError else problem_text(data, "not as published")
        return replace(record, data=None, raw=raw, problem=problem)
    if isinstance(data, tuple):
        return replace(record, data=data[0], raw=raw, ignored=data[1])
    return replace(record, data=data, raw=raw)


def read_all_records(records: Iterable[SourceRecord], published: type[Published]) -> list[Published]:
    """Read records that all others need, e.g. a schema.

    Raises `DataError` with the place of the first record that is not as published.
    """
    items = []
    for record in records:
        problem = record.problem
        try:
            items.append(published.model_validate(record.data or {}))
        except ValidationError as error:
            problem = problem or first_validation_error(error)
        if problem is not None:
            raise DataError(f"{record.source}:{record.line}: {problem}. Fetch the published file again")
    return items


def declare_splits(train: Iterable[SourceRecord], heldout: Iterable[SourceRecord]) -> Iterator[SourceRecord]:
    """The training part of a source, then its held-out part, each scenario with its split.

    If a held-out scenario has the same start as a training scenario, it has leaked. Its split stays open, so that it
    follows the training scenario with the same start.
    """
    train_starts = set()
    for record in train:
        if record.data is not None:
            train_starts.add(_start(record.data))
            record.data["split"] = "train"
        yield record
    for record in heldout:
        if record.data is not None and _start(record.data) not in train_starts:
            record.data["split"] = "heldout"
        yield record


def difficulty_by_count(count: int, *, easy: int, medium: int) -> Difficulty:
    """Difficulty by a number of steps or calls: easy up to `easy`, medium up to `medium`, else hard."""
    return "easy" if count <= easy else "medium" if count <= medium else "hard"


def _start(data: dict[str, Any]) -> str:
    """Digest of `Scenario.start` for a record that is not validated yet."""
    text = normalize("\n".join((*data.get("user_responses", ()), data.get("goal", ""))))
    start = episode_start(text, data.get("world", {}), data.get("metadata", {}).get("identity", ""))
    return hashlib.sha256(start.encode(errors="replace")).hexdigest()
