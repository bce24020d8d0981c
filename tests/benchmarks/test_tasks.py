"""The table of the public tasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks.page import Table, replace_results
from tests.benchmarks.tasks import kept_rows, pooled


def test_seeds_are_pooled_with_students_interval():
    """Gains .1, .2 and .3: mean .2, standard error .1 / √3 = .0577, times t(.975, 2) = 4.303 gives .248."""
    gains = [
        SimpleNamespace(overall=SimpleNamespace(difference=SimpleNamespace(mean=gain))) for gain in (0.1, 0.2, 0.3)
    ]
    documents: list[Any] = [SimpleNamespace(evaluation=evaluation) for evaluation in gains]
    assert pooled("desk", documents)[4] == "+0.200 [-0.048, +0.448]"


PAGE = """# Tasks

## Results

old

| run | base |
| --- | --- |
| babyai, seed 1 | 0.0% |
| babyai, seed 1: larger |  |
| triage, seed 1 | 5.0% |

Prose.

## BabyAI

| a | table |
"""


def test_the_results_are_replaced_up_to_the_end_of_their_table(tmp_path: Path):
    """What stands before and after it stays."""
    page = tmp_path / "tasks.md"
    page.write_text(PAGE)
    replace_results(page, "## Results\n", "Written by a run.", Table(head=("run",), rows=(("babyai",),)))
    text = page.read_text()
    assert text.startswith("# Tasks\n\n## Results\n\nWritten by a run.\n\n| run |\n")
    assert "old" not in text
    assert text.endswith("| babyai |\n\nProse.\n\n## BabyAI\n\n| a | table |\n")


def test_families_that_are_not_run_keep_their_rows(tmp_path: Path):
    """With the cells that are empty."""
    page = tmp_path / "tasks.md"
    page.write_text(PAGE)
    assert kept_rows(["triage"], page) == {"babyai": [("babyai, seed 1", "0.0%"), ("babyai, seed 1: larger", "")]}


def test_a_page_without_the_section_is_refused(tmp_path: Path):
    (tmp_path / "tasks.md").write_text("# Tasks\n")
    with pytest.raises(ValueError, match="substring not found"):
        replace_results(tmp_path / "tasks.md", "## Results\n", "", Table(head=("run",), rows=()))
