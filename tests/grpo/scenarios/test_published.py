"""docs/data.md says what the readers find in the published files."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from grpo.config.pipeline import load_config
from grpo.config.scenarios import PublishedSource
from grpo.scenarios.reward_data import LabelKind, PairKind, read_labels, read_pairs
from grpo.scenarios.sources import read_records
from tests.places import ROOT

TABLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "data.md")
    .read_text(encoding="utf-8")
    .partition("## Tasks that can be played")[0]
    .splitlines()
    if re.match(r"\| [a-z0-9_ ]+ \|", line) and not line.startswith("| kind")
]
SCENARIOS = {row[0]: row for row in TABLES if row[1].isdigit()}
JUDGED = {(row[0], row[1]): row for row in TABLES if not row[1].isdigit()}
CONFIG = load_config(ROOT / "data" / "configs" / "published.yaml")
SOURCES = {f"{s.kind} {s.domain}" if s.kind == "tau2_bench" else s.kind: s for s in CONFIG.scenarios.sources}


def test_every_kind_has_a_row_and_a_line_in_the_config():
    """What can be read is documented, and reached by `grpo ingest data/configs/published.yaml`."""
    published = set(get_args(PublishedSource.model_fields["kind"].annotation))
    assert published < SCENARIOS.keys()
    assert SCENARIOS.keys() == SOURCES.keys()
    pairs, labels = (
        {(kind, name) for kind in get_args(kinds)} for kinds, name in ((PairKind, "pairs"), (LabelKind, "labels"))
    )
    assert pairs | labels == JUDGED.keys()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_table_counts_the_records_of_a_source(name: str, published: Any):
    """Records are used or quarantined; the readers see as many as the table says."""
    source = SOURCES[name]
    records, used, quarantined = map(int, SCENARIOS[name][1:4])
    assert records == used + quarantined
    assert sum(1 for _ in read_records(source.model_copy(update={"path": str(published(source.kind))}))) == records


@pytest.mark.parametrize(("kind", "item"), JUDGED)
def test_the_table_counts_what_was_judged(kind: Any, item: str, published: Any):
    """So many pairs or labelled replies, so many in quarantine."""
    read = read_pairs if item == "pairs" else read_labels
    found = read(kind, published(kind))
    row = JUDGED[kind, item]
    assert [found.records, len(found.items), len(found.quarantined)] == [int(cell) for cell in row[2:5]]
