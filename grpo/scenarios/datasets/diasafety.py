"""DiaSafety: what a user says, what a chatbot replies, and whether that is safe in this context.

The published parts are the splits. Some contexts are in both parts, with other replies: a measure on the held-out split
is on new replies, not on new contexts. Offensive; texts are not to be shown.

https://github.com/thu-coai/DiaSafety, Apache-2.0
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.messages import Message
from grpo.scenarios.datasets.parts import DatasetPart, find_parts
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.records import convert_records

_PARTS = {name: (f"{name}.json", f"DiaSafety_dataset/{name}.json") for name in ("train", "val", "test")}


class _Exchange(BaseModel):
    context: str
    response: str
    category: str
    label: Literal["Safe", "Unsafe"]


def read_diasafety_labels(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train` and `val`), one record a reply. An unsafe reply scores 0, a safe one 1.

    Raises `DataError` where a file is missing or broken.
    """
    for part in find_parts(folder, parts or ("train", "val"), _PARTS):
        yield from convert_records(read_json(part.path), _Exchange, partial(_label, part))


def _label(part: DatasetPart, found: _Exchange, line: int) -> dict[str, Any]:
    return {
        "id": f"diasafety-{part.stem}-{line}",
        "group": f"diasafety-{hashlib.sha256(found.context.encode()).hexdigest()[:16]}",
        "prompt": [Message(role="user", content=found.context)],
        "reply": Message(role="assistant", content=found.response),
        "label": found.label,
        "score": float(found.label == "Safe"),
        "category": found.category,
        "source": "diasafety",
        "licence": "Apache-2.0",
        "split": part.split,
    }
