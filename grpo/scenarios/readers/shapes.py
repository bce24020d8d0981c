"""From records as somebody published them to records in the project's own fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grpo.scenarios.readers.record import Record
from grpo.scenarios.scenario import Difficulty, normalize

Shape = TypeVar("Shape", bound=BaseModel)


def reshape(
    records: Iterable[Record], shape: type[Shape], fields: Callable[[Shape, int], dict[str, Any]]
) -> Iterator[Record]:
    """Check each record against its published shape and give it the fields of what it becomes.

    `fields` takes the checked record and its line; a `ValueError` that it raises becomes the record's problem.
    What could not be read stays as it is.
    """
    for record in records:
        if record.data is None:
            yield record
            continue
        raw = record.raw or json.dumps(record.data, ensure_ascii=False)
        data, problem = None, None
        try:
            data = fields(shape.model_validate(record.data), record.line)
        except ValidationError as error:
            problem = f"not as published: {first_fault(error)}"
        except ValueError as error:
            problem = str(error)
        yield Record(source=record.source, line=record.line, data=data, raw=raw, problem=problem)


def first_fault(error: ValidationError) -> str:
    """`user_scenario: Field required`"""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"]))
    message = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def declare_sides(train: Iterable[Record], heldout: Iterable[Record]) -> Iterator[Record]:
    """The training part of a source, then its held-out part, each scenario with its side.

    A held-out scenario whose user says or wants the same as one of the training part has leaked: its side is left
    open, and the split puts it where its like is.
    """
    seen = set()
    for record in train:
        if record.data is not None:
            seen.add(_text(record.data))
            record.data["side"] = "train"
        yield record
    for record in heldout:
        if record.data is not None and _text(record.data) not in seen:
            record.data["side"] = "heldout"
        yield record


def grade(count: int, *, easy: int, medium: int) -> Difficulty:
    """Difficulty by a number of steps or calls: up to `easy`, up to `medium`, more."""
    return "easy" if count <= easy else "medium" if count <= medium else "hard"


def _text(data: dict[str, Any]) -> str:
    """What `Scenario.text` will be."""
    return normalize("\n".join((*data.get("user_responses", ()), data.get("goal", ""))))
