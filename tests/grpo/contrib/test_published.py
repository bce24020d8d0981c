"""The tables of docs/internals/data.md against the published files."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from grpo.config.pipeline import load_config
from grpo.config.scenarios import PublishedSource
from grpo.scenarios.reward_data import LabelKind, PairKind, read_labels, read_pairs
from grpo.scenarios.sources import read_records
from tests.places import INTERNALS, ROOT

TABLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (INTERNALS / "data.md").read_text(encoding="utf-8").partition("## Playable tasks")[0].splitlines()
    if re.match(r"\| [a-z0-9_ ]+ \|", line) and not line.startswith("| kind")
]
SCENARIO_ROWS = {row[0]: row for row in TABLES if row[1].isdigit()}
REWARD_ROWS = {(row[0], row[1]): row for row in TABLES if not row[1].isdigit()}
CONFIG = load_config(ROOT / "data" / "configs" / "published.yaml")
SOURCES = {f"{s.kind} {s.domain}" if s.kind == "tau2_bench" else s.kind: s for s in CONFIG.scenarios.sources}


def test_every_kind_has_a_row_in_the_docs_and_a_source_in_the_config():
    """Each kind is documented, and read by `grpo ingest data/configs/published.yaml`."""
    published = set(get_args(PublishedSource.model_fields["kind"].annotation))
    assert published < SCENARIO_ROWS.keys()
    assert SCENARIO_ROWS.keys() == SOURCES.keys()
    pairs, labels = (
        {(kind, name) for kind in get_args(kinds)} for kinds, name in ((PairKind, "pairs"), (LabelKind, "labels"))
    )
    assert pairs | labels == REWARD_ROWS.keys()


@pytest.mark.parametrize("name", SCENARIO_ROWS)
def test_the_table_counts_the_records_of_a_source(name: str, published: Any):
    """Records are used or quarantined, as many as in the table."""
    source = SOURCES[name]
    records, used, quarantined = map(int, SCENARIO_ROWS[name][1:4])
    assert records == used + quarantined
    assert sum(1 for _ in read_records(source.model_copy(update={"path": str(published(source.kind))}))) == records


@pytest.mark.parametrize(("kind", "item"), REWARD_ROWS)
def test_the_table_counts_pairs_and_labels(kind: Any, item: str, published: Any):
    """Records, items and quarantined records are those of the table."""
    read = read_pairs if item == "pairs" else read_labels
    parsed = read(kind, published(kind))
    row = REWARD_ROWS[kind, item]
    assert [parsed.records, len(parsed.items), len(parsed.quarantined)] == [int(cell) for cell in row[2:5]]
