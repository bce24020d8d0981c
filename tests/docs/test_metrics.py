"""docs/serving.md lists every metric of a server."""

from __future__ import annotations

from pathlib import Path

from tests.grpo.serving.metric_families import families
from tests.places import ROOT


def test_the_table_has_every_metric_with_its_labels_and_meaning(tmp_path: Path):
    """In the order of `/metrics`, and none that is not there."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.split("| metric | labels | value |\n|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    rows = [
        f"| `{family.name}` | {', '.join(f'`{label}`' for label in family.labels)} | {family.text} |"
        for family in families(tmp_path)
    ]
    assert table.splitlines() == rows
