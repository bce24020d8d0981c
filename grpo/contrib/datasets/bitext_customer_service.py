"""Bitext: utterances to a shop's customer service, with an intent and tags of the register.

    tags    Z errors and typos                                → hard
            Q colloquial, E abbreviated, K keywords, W rude   → medium
            none of them                                      → easy

The files begin with a byte order mark. Entities are left out, because their offsets refer to the utterance before its
case was changed.

https://github.com/bitext/customer-support-intent-detection-training-dataset, CDLA-Sharing-1.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.contrib.datasets.parts import DatasetPart, find_parts, read_parts
from grpo.scenario import Difficulty
from grpo.scenarios.readers.files.csv_file import read_cells
from grpo.scenarios.records import SourceRecord, convert_records

_PARTS = {
    name: (f"{name}.csv", f"data/{name}/Bitext_Sample_Customer_Service_{published}_Dataset.csv")
    for name, published in (("train", "Training"), ("dev", "Validation"), ("test", "Testing"))
}


class _Utterance(BaseModel):
    utterance: str
    intent: str
    category: str
    tags: str


def read_bitext_customer_service(folder: Path, parts: Sequence[str] = ()) -> Iterator[SourceRecord]:
    """Read the parts (default `train` and `dev`), one record per utterance.

    Raises `DataError` if a file is missing or lacks a column.
    """
    yield from read_parts(find_parts(folder, parts or ("train", "dev"), _PARTS), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    def fields(utterance: _Utterance, line: int) -> dict[str, Any]:
        return {
            "id": f"bitext-{part.stem}-{line}",
            "topic": utterance.category,
            "domain": "customer_service",
            "user_responses": [utterance.utterance],
            "metadata": {
                "category": utterance.intent,
                "difficulty": _difficulty(utterance.tags),
                "source": "bitext",
                "licence": "CDLA-Sharing-1.0",
            },
        }

    return convert_records(read_cells(part.path, required=tuple(_Utterance.model_fields)), _Utterance, fields)


def _difficulty(tags: str) -> Difficulty:
    if "Z" in tags:
        return "hard"
    return "easy" if set("QEKW").isdisjoint(tags) else "medium"
