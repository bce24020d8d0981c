"""Bitext: utterances with intent and register, in two parts."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

HEADER = "\ufeffutterance,intent,entity_type,entity_value,start_offset,end_offset,category,tags\n"


def part(*rows: str) -> str:
    """A part with these rows, `utterance|tags` each."""
    return HEADER + "".join("{},track,,,,,ORDER,{}\n".format(*row.split("|")) for row in rows)


def test_the_byte_order_mark_does_not_hide_the_first_column(folder, ingested):
    """The first column is `utterance`, and the parts are the splits."""
    _, scenarios = ingested("bitext_customer_service", folder({"train.csv": part("Where|B"), "dev.csv": part("Who|B")}))
    assert [(s.user_responses[0], s.split) for s in scenarios] == [("Where", "train"), ("Who", "heldout")]


def test_a_text_of_both_parts_is_not_declared_heldout(folder, ingested):
    """`where?` and `Where` are the same text: its split stays open and follows the training one."""
    files = {"train.csv": part("Where|B"), "dev.csv": part("where?|B", "Who|B")}
    _, scenarios = ingested("bitext_customer_service", folder(files))
    assert [s.split for s in scenarios] == ["train", None, "heldout"]


@pytest.mark.parametrize(
    ("tags", "difficulty"), [("BIL", "easy"), ("BLQ", "medium"), ("BK", "medium"), ("BLW", "medium"), ("BLQZ", "hard")]
)
def test_the_register_is_the_difficulty(folder, ingested, tags, difficulty):
    """Utterances with errors are hard; colloquial, keyword and rude ones medium; the rest easy."""
    _, scenarios = ingested("bitext_customer_service", folder({"train.csv": part(f"a|{tags}"), "dev.csv": part("b|B")}))
    assert scenarios[0].metadata.difficulty == difficulty


def test_every_published_utterance_is_a_scenario(published, ingested):
    """6480 + 810; 35 of the 810 have the text of a training utterance."""
    folder = published("bitext_customer_service")
    rows = {}
    for name in ("train", "dev"):
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8-sig") as file:
            rows[name] = list(csv.DictReader(file))
    counts, scenarios = ingested("bitext_customer_service", folder)
    assert counts.records == counts.scenarios == len(rows["train"]) + len(rows["dev"]) == 7290
    assert Counter(s.split for s in scenarios) == {"train": 6480, "heldout": 775, None: 35}
    assert sum(s.metadata.difficulty == "hard" for s in scenarios) == sum(
        "Z" in row["tags"] for part in rows.values() for row in part
    )
