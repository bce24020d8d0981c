"""CIMA: a student translates an English phrase into Italian with a tutor, and several tutors wrote the last reply.

    past_convo: tutor, student, tutor, …   the student's turns → user_responses, the tutor's opening → context
    tutorResponses                         → expected.responses, and labelled replies
    tutorActions                           → a reply's label, e.g. `hint+question`
    studentActions                         → category: the student's last action
    words and grammar rules                → context

One object holds the exercises by id. Their `grammarRules` are JSON in a string. In a third of the exercises the rest of
another document follows it. Student actions are the strings "True" and "False", but tutor actions are booleans.

https://github.com/kstats/CIMA, CC-BY-2.5
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from grpo.contrib.datasets.parts import find_parts
from grpo.data_errors import excerpt
from grpo.errors import DataError
from grpo.messages import Message
from grpo.scenarios.readers.files.source_files import read_document
from grpo.scenarios.records import SourceRecord, convert_records

_TUTOR = ("question", "hint", "correction", "confirmation", "other")
_STUDENT = ("guess", "question", "affirmation", "other")


class _Exercise(BaseModel):
    id: str
    past_convo: tuple[str, ...] = Field(min_length=2)
    prep: str
    engPrep: str
    obj: str
    engObj: str
    color: str
    engColor: str
    grammarRules: str
    studentActions: tuple[Literal["True", "False"], ...]
    tutorResponses: tuple[str, ...]
    tutorActions: tuple[tuple[bool, ...], ...]


def read_cima_tutoring(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the exercises of the parts (default `dataset`), one record each. `line` is the exercise's number.

    Raises `DataError` if the file is missing or has no exercises.
    """
    return convert_records(_exercises(folder, parts), _Exercise, _scenario)


def read_cima_tutoring_labels(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the tutors' replies, one record each. If an exercise cannot be read, it gives one record."""
    for record in convert_records(_exercises(folder, parts), _Exercise, _replies):
        if record.data is None:
            yield record
            continue
        for reply in record.data["replies"]:
            yield SourceRecord(source=record.source, line=record.line, data=reply, raw=record.raw)


def _exercises(folder: Path, parts: Sequence[str]) -> Iterator[SourceRecord]:
    for part in find_parts(folder, parts or ("dataset",), {"dataset": ("dataset.json",)}):
        yield from _read(part.path)


def _read(path: Path) -> Iterator[SourceRecord]:
    document = read_document(path)
    if not isinstance(document, dict) or not any(isinstance(part, dict) and part for part in document.values()):
        raise DataError(f"{path} holds no exercises by id. Fetch the published file again")
    number = 0
    for part in document.values():
        if not isinstance(part, dict):
            raise DataError(f"{path} holds a {type(part).__name__} among the exercises by id. Fetch it again")
        for key, item in part.items():
            number += 1
            if isinstance(item, dict):
                yield SourceRecord(source=str(path), line=number, data={"id": key, **item})
            else:
                problem = f"not an object: {type(item).__name__}"
                yield SourceRecord(source=str(path), line=number, data=None, raw=excerpt(item), problem=problem)


def _scenario(exercise: _Exercise, _: int) -> dict[str, Any]:
    words = (
        (exercise.engObj, exercise.obj),
        (exercise.engPrep, exercise.prep),
        (exercise.engColor, exercise.color),
    )
    lines = [f"{english}: {italian}" for english, italian in words]
    return {
        "id": f"cima-{exercise.id}",
        "topic": "Italian prepositional phrases",
        "domain": "education",
        "user_responses": list(exercise.past_convo[1::2]),
        "context": "\n".join((*lines, *_rules(exercise.grammarRules), f"Tutor: {exercise.past_convo[0].strip()}")),
        "expected": {"responses": list(exercise.tutorResponses)},
        "metadata": {
            "category": _actions(_STUDENT, [flag == "True" for flag in exercise.studentActions]).partition("+")[0],
            "source": "cima",
            "licence": "CC-BY-2.5",
        },
    }


def _replies(exercise: _Exercise, _: int) -> dict[str, Any]:
    prompt = [
        Message(role="assistant" if index % 2 == 0 else "user", content=text)
        for index, text in enumerate(exercise.past_convo)
    ]
    return {
        "replies": [
            {
                "id": f"cima-{exercise.id}-{number}",
                "group": f"cima-{exercise.id}",
                "prompt": prompt,
                "reply": Message(role="assistant", content=text),
                "label": _actions(_TUTOR, actions),
                "category": "tutor_action",
                "source": "cima",
                "licence": "CC-BY-2.5",
            }
            for number, (text, actions) in enumerate(zip(exercise.tutorResponses, exercise.tutorActions, strict=True))
        ]
    }


def _actions(names: tuple[str, ...], flags: tuple[bool, ...] | list[bool]) -> str:
    """Names with a set flag, joined by `+`. Raises `ValueError` unless there are as many flags as names."""
    chosen = [name for name, flag in zip(names, flags, strict=True) if flag]
    return "+".join(chosen) or "other"


def _rules(text: str) -> list[str]:
    """The rules without their explanations. Text after the list is ignored."""
    try:
        rules, _ = json.JSONDecoder().raw_decode(text)
    except ValueError as error:
        raise ValueError(f"grammar rules are not JSON: {text:.80}") from error
    return [str(rule) for rule, *_ in rules]
