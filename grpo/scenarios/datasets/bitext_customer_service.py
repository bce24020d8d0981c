"""Bitext: utterances to a shop's customer service, by intent; tags say in which register.

    tags    Z errors and typos                                → hard
            Q colloquial, E abbreviated, K keywords, W rude   → medium
            none of them                                      → easy

The files begin with a byte order mark. Entities are left out: the offsets point into the utterance as it was before
it changed its case.

https://github.com/bitext/customer-support-intent-detection-training-dataset, CDLA-Sharing-1.0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from grpo.scenarios.datasets.parts import DatasetPart, find_parts, read_parts
from grpo.scenarios.readers.csv_file import read_cells
from grpo.scenarios.readers.record import SourceRecord
from grpo.scenarios.records import convert_records
from grpo.scenarios.scenario import Difficulty

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
    """Read the parts (default `train` and `dev`), one record an utterance.

    Raises `DataError` where a file is missing or lacks a column.
    """
    yield from read_parts(find_parts(folder, parts or ("train", "dev"), _PARTS), _read)


def _read(part: DatasetPart) -> Iterator[SourceRecord]:
    def fields(found: _Utterance, line: int) -> dict[str, Any]:
        return {
            "id": f"bitext-{part.stem}-{line}",
            "topic": found.category,
            "domain": "customer_service",
            "user_responses": [found.utterance],
            "metadata": {
                "category": found.intent,
                "difficulty": _difficulty(found.tags),
                "source": "bitext",
                "licence": "CDLA-Sharing-1.0",
            },
        }

    return convert_records(read_cells(part.path, required=tuple(_Utterance.model_fields)), _Utterance, fields)


def _difficulty(tags: str) -> Difficulty:
    if "Z" in tags:
        return "hard"
    return "easy" if set("QEKW").isdisjoint(tags) else "medium"
