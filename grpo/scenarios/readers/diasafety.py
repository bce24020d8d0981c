"""DiaSafety: what a user says, what a chatbot replies, and whether that is safe in this context.

The published parts are the sides. Some contexts are in both parts, with other replies: a measure on the held-out side
is on new replies, not on new contexts. Offensive; texts are not to be shown.

https://github.com/thu-coai/DiaSafety, Apache-2.0
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from grpo.messages import Message
from grpo.scenarios.readers.json_file import read_json
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import reshape


class _Exchange(BaseModel):
    context: str
    response: str
    category: str
    label: Literal["Safe", "Unsafe"]


def read_diasafety(folder: Path) -> Iterator[Record]:
    """Read `train.json` and `val.json`, which is held out; one record a reply. An unsafe reply scores 0, a safe one 1.

    Raises `DataError` where a file is missing or broken.
    """
    for part, side in (("train", "train"), ("val", "heldout")):
        yield from reshape(read_json(folder / f"{part}.json"), _Exchange, partial(_label, part, side))


def _label(part: str, side: str, found: _Exchange, line: int) -> dict[str, Any]:
    return {
        "id": f"diasafety-{part}-{line}",
        "group": f"diasafety-{hashlib.sha256(found.context.encode()).hexdigest()[:16]}",
        "prompt": [Message(role="user", content=found.context)],
        "reply": Message(role="assistant", content=found.response),
        "label": found.label,
        "score": float(found.label == "Safe"),
        "category": found.category,
        "source": "diasafety",
        "licence": "Apache-2.0",
        "side": side,
    }
