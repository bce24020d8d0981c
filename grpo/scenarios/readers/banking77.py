"""BANKING77: what customers of an online bank ask, by one of 77 intents.

Only the training file is at hand, so no side is declared. White space around a question is cut off, a line break in
it stays.

https://github.com/PolyAI-LDN/task-specific-datasets, CC-BY-4.0
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.scenarios.readers.csv_file import read_cells
from grpo.scenarios.readers.files import read_document
from grpo.scenarios.readers.record import Record
from grpo.scenarios.readers.shapes import reshape


class _Question(BaseModel):
    text: str
    category: str


def read_banking77(folder: Path) -> Iterator[Record]:
    """Read `train.csv`, one record a question; an intent that `categories.json` does not list is a problem.

    Raises `DataError` where a file is missing or broken.
    """
    intents = frozenset(read_document(folder / "categories.json"))

    def fields(found: _Question, line: int) -> dict[str, Any]:
        if found.category not in intents:
            raise ValueError(f"unknown category: {found.category}")
        return {
            "id": f"banking77-{line}",
            "topic": "banking",
            "domain": "customer_service",
            "user_responses": [found.text.strip()],
            "metadata": {"category": found.category, "source": "banking77", "licence": "CC-BY-4.0"},
        }

    yield from reshape(read_cells(folder / "train.csv", required=("text", "category")), _Question, fields)
