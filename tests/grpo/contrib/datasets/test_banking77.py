"""BANKING77: customers' questions by intent."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.config.pipeline import load_config
from grpo.environments.catalog import find_unplayable
from grpo.scenarios.ingest import ingest
from grpo.scenarios.split import split
from grpo.scenarios.table import read_scenarios
from tests.places import ROOT

CSV = 'text,category\r\n  Where is it? ,card\r\n"Two\nlines",card\r\nWhat?,weather\r\nonly one cell\r\n'


def test_a_question_is_a_scenario_of_one_turn(folder, ingested):
    """White space around it is cut off, a line break in it stays; the id has the line of its beginning."""
    _, scenarios = ingested("banking77", folder({"train.csv": CSV, "categories.json": ["card"]}))
    assert {s.id: s.user_responses for s in scenarios} == {
        "banking77-2": ("Where is it?",),
        "banking77-3": ("Two\nlines",),
    }


def test_an_unknown_intent_and_a_short_row_are_counted(folder, ingested):
    """4 rows = 2 scenarios + 2 in quarantine."""
    counts, _ = ingested("banking77", folder({"train.csv": CSV, "categories.json": ["card"]}))
    assert counts.records == 4
    assert counts.reasons == {"unknown category": 1, "wrong number of cells": 1}


def test_every_published_question_is_a_scenario(published, ingested):
    """10003 questions of 77 intents; 9 have white space around them, 1 a line break inside."""
    folder = published("banking77")
    with (folder / "train.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counts, scenarios = ingested("banking77", folder)
    assert (counts.records, counts.scenarios) == (len(rows), len(rows)) == (10003, 10003)
    assert [s.user_responses[0] for s in scenarios] == [row["text"].strip() for row in rows]
    assert sum(row["text"] != row["text"].strip() for row in rows) == 9
    assert sum("\n" in s.user_responses[0] for s in scenarios) == 1
    assert {s.metadata.category for s in scenarios} == {row["category"] for row in rows}


def test_demonstrations_show_each_intent_and_repeat_no_published_question(published: Callable[[str], Path]):
    """309 questions of 77 intents, four or five of each; compared without case and punctuation."""

    def words(text: str) -> str:
        return " ".join(re.findall(r"\w+", text.lower()))

    path = ROOT / "data" / "scenarios" / "banking77_intents_demonstrations.jsonl"
    demonstrations = [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    with (published("banking77") / "train.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    shown = Counter(turns[1]["tool_calls"][0]["function"]["arguments"]["team"] for turns in demonstrations)
    assert shown.keys() == {row["category"] for row in rows}
    assert set(shown.values()) == {4, 5}
    assert not {words(turns[0]["content"]) for turns in demonstrations} & {words(row["text"]) for row in rows}


@pytest.mark.parametrize("name", ["banking77", "banking77_teams"])
def test_each_intent_of_a_shipped_config_is_held_out(name: str, published: Callable[[str], Path], tmp_path: Path):
    """The split raises for one of which no scenario is."""
    published("banking77")
    config = load_config(ROOT / "data" / "configs" / f"{name}.yaml")
    table = tmp_path / "scenarios.parquet"
    bound = config.scenarios.max_quarantined_fraction
    ingest(config.scenarios.sources, table, tmp_path / "quarantine.parquet", max_quarantined_fraction=bound)
    excluded = find_unplayable(config.environment, read_scenarios(table), max_fraction=bound)
    divided = split(
        table,
        validation_fraction=config.scenarios.validation_fraction,
        limit=config.scenarios.limit,
        excluded=excluded,
    )
    assert min(len(divided.train), len(divided.heldout)) > 100
