"""The first records of a source, bounded in number and in characters."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo.scenarios.first_records import MOST_CHARACTERS, characters, first_records
from grpo.scenarios.guess import guess_source


def test_characters_of_all_texts_are_counted():
    """5 + 1 for the number, 1 for a key, 2 and 3 of a list; nothing is recursive."""
    assert characters({"k": ["ab", "cde"], "other": 7}) == 1 + 2 + 3 + 5 + 1
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert characters(deep) == 0


@pytest.mark.parametrize(("size", "most", "count"), [(10, 3, 3), (MOST_CHARACTERS // 4, 9, 4), (MOST_CHARACTERS, 9, 1)])
def test_records_are_bounded_by_number_and_characters(size: int, most: int, count: int):
    """The rest is not read."""
    read = []

    def records() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield "x" * size

    assert len(list(first_records(records(), most))) == count
    assert len(read) <= count + 1


def test_a_single_record_is_looked_at_whatever_its_size():
    assert list(first_records([2], 5, size=lambda record: 2 * MOST_CHARACTERS)) == [2]


def test_a_guess_holds_a_bounded_part_of_long_records(tmp_path: Path):
    """8 records of 12 MiB: less than 96 MiB are held at any time. Each of two lists of them all would take that."""
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        for number in range(8):
            line = {"id": str(number), "question": "2 + 2?", "answer": "4", "notes": "x" * 12 * 2**20}
            file.write(f"{json.dumps(line)}\n")
    tracemalloc.start()
    try:
        guess_source(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 96 * 2**20
