"""DiaSafety: a user's message, a chatbot's reply, and a label of its safety in this context.

The published parts are the splits. Some contexts are in both parts, with other replies, so that the held-out split
measures new replies but not new contexts. The texts are offensive.

https://github.com/thu-coai/DiaSafety, Apache-2.0
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts
from grpo.messages import Message
from grpo.scenarios.readers.files.json_file import read_json
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {name: (f"{name}.json", f"DiaSafety_dataset/{name}.json") for name in ("train", "val", "test")}


class _LabelledExchange(BaseModel):
    context: str
    response: str
    category: str
    label: Literal["Safe", "Unsafe"]


def read_diasafety_labels(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train` and `val`), one record per reply. An unsafe reply scores 0, a safe one 1.

    Raises `DataError` if a file is missing or broken.
    """
    for part in find_parts(folder, parts or ("train", "val"), _PARTS):
        yield from convert_records(read_json(part.path), _LabelledExchange, partial(_label, part))


def _label(part: DatasetPart, exchange: _LabelledExchange, line: int) -> dict[str, Any]:
    return {
        "id": f"diasafety-{part.stem}-{line}",
        "group": f"diasafety-{hashlib.sha256(exchange.context.encode()).hexdigest()[:16]}",
        "prompt": [Message(role="user", content=exchange.context)],
        "reply": Message(role="assistant", content=exchange.response),
        "label": exchange.label,
        "score": float(exchange.label == "Safe"),
        "category": exchange.category,
        "source": "diasafety",
        "licence": "Apache-2.0",
        "split": part.split,
    }
