"""Bridge: moments of maths tutoring with a student's error, a novice's reply and an expert's reply.

    the student's turns in c_h          → user_responses
    lesson, the tutor before them       → context
    c_r_, the expert's reply            → expected.responses, and chosen in pairs
    c_r, the novice's reply             → rejected in pairs
    e, the kind of error                → category, or `other` if an annotator used other words

If several experts revised a moment, it has several records. If a student turn is empty, the record is quarantined.

https://github.com/rosewang2008/bridge, MIT
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from grpo.contrib.datasets.parts import find_parts, read_parts
from grpo.messages import Message, Role
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.readers.files.source_files import read_document
from grpo.scenarios.readers.messages.speaker_turns import merge_speaker_turns, user_turns_and_replies
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {name: (f"{name}.json", f"dataset/{name}.json") for name in ("train", "validation", "test")}
_DEFAULT = ("train", "validation")
_ERRORS = frozenset({"guess", "right-idea", "diagnose", "careless", "misinterpret", "imprecise"})
_ROLES: dict[str, Role] = {"student": "user", "tutor": "assistant"}


class _Line(BaseModel):
    user: Literal["student", "tutor"]
    text: str


class _Moment(BaseModel):
    c_id: str
    lesson_topic: str
    c_h: tuple[_Line, ...] = Field(min_length=1)
    c_r: tuple[_Line, ...]
    c_r_: tuple[_Line, ...]
    e: str


def read_bridge_math_tutoring(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train` and `validation`), one scenario per moment.

    Raises `DataError` if a file is missing or broken.
    """
    places = find_parts(folder, parts or _DEFAULT, _PARTS)
    yield from read_parts(
        places, lambda part: convert_records(read_json(part.path), _Moment, partial(_scenario, part.stem))
    )


def read_bridge_math_tutoring_pairs(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the same moments as pairs, in which the expert's reply is chosen and the novice's is rejected.

    If a chat has moments in a training part and in a held-out part, all of them go into the training split.
    """
    places = find_parts(folder, parts or _DEFAULT, _PARTS)
    moments = [item for part in places if part.split == "train" for item in read_document(part.path)]
    in_train = {str(item.get("c_id")) for item in moments if isinstance(item, dict)}
    for part in places:
        for record in convert_records(read_json(part.path), _Moment, partial(_pair, part.stem)):
            if record.data is not None and part.split is not None:
                record.data["split"] = "train" if record.data["group"] in in_train else "heldout"
            yield record


def _scenario(part: str, moment: _Moment, line: int) -> dict[str, Any]:
    lines = _lines(moment.c_h)
    student, _ = user_turns_and_replies(lines, "student")
    speaker, opening = merge_speaker_turns(lines)[0]
    context = f"Lesson: {moment.lesson_topic}"
    return {
        "id": _id(moment, part, line),
        "topic": moment.lesson_topic,
        "domain": "education",
        "user_responses": student,
        "context": f"{context}\nTutor: {opening}" if speaker == "tutor" else context,
        "expected": {"responses": [_text(moment.c_r_)]},
        "metadata": {"category": _category(moment.e), "source": "bridge", "licence": "MIT"},
    }


def _pair(part: str, moment: _Moment, line: int) -> dict[str, Any]:
    lesson = Message(role="system", content=f"Lesson: {moment.lesson_topic}")
    chat = [Message(role=_ROLES[speaker], content=text) for speaker, text in merge_speaker_turns(_lines(moment.c_h))]
    return {
        "id": _id(moment, part, line),
        "group": moment.c_id,
        "prompt": (lesson, *chat),
        "chosen": Message(role="assistant", content=_text(moment.c_r_)),
        "rejected": Message(role="assistant", content=_text(moment.c_r)),
        "category": _category(moment.e),
        "source": "bridge",
        "licence": "MIT",
    }


def _id(moment: _Moment, part: str, line: int) -> str:
    return f"bridge-{part}-{line}-{moment.c_id}"


def _lines(lines: tuple[_Line, ...]) -> list[tuple[str, str]]:
    return [(line.user, line.text) for line in lines]


def _text(lines: tuple[_Line, ...]) -> str:
    return "\n".join(line.text for line in lines if line.text.strip())


def _category(error: str) -> str:
    return error if error in _ERRORS else "other"
