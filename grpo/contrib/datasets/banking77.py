"""BANKING77: questions of an online bank's customers, with one of 77 intents.

White space around a question is removed, but a line break inside it stays.

https://github.com/PolyAI-LDN/task-specific-datasets, CC-BY-4.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts, read_parts
from grpo.scenarios.readers.files.csv_file import read_cells
from grpo.scenarios.readers.files.source_files import read_document
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {name: (f"{name}.csv", f"banking_data/{name}.csv") for name in ("train", "test")}


class _Question(BaseModel):
    text: str
    category: str


def read_banking77(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train`), one record per question. The category must be in `categories.json`.

    Raises `DataError` if a file is missing or broken.
    """
    yield from read_parts(find_parts(folder, parts or ("train",), _PARTS), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    intents = frozenset(read_document(part.path.parent / "categories.json"))
    prefix = "banking77" if part.name == "train" else f"banking77-{part.stem}"

    def fields(question: _Question, line: int) -> dict[str, Any]:
        if question.category not in intents:
            raise ValueError(f"unknown category: {question.category}")
        return {
            "id": f"{prefix}-{line}",
            "topic": "banking",
            "domain": "customer_service",
            "user_responses": [question.text.strip()],
            "metadata": {"category": question.category, "source": "banking77", "licence": "CC-BY-4.0"},
        }

    return convert_records(read_cells(part.path, required=("text", "category")), _Question, fields)
