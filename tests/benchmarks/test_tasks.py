"""The table of the public tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.page import Table, replace_results
from tests.benchmarks.tasks import family_rows, kept_rows, pooled


def test_seeds_are_pooled_with_students_interval():
    """Gains .1, .2 and .3: mean .2, standard error .1 / √3 = .0577, times t(.975, 2) = 4.303 gives .248."""
    rows = [(f"desk, seed {k}", "", "", "", f"+0.{k}00 [-0.1, +0.9]") for k in (1, 2, 3)]
    larger = ("desk, seed 1: larger", "", "", "", "+0.900 [+0.8, +1.0]")
    failed = ("desk, seed 4", "", "", "", "–")
    assert pooled("desk", [*rows, larger, failed])[::4] == ("desk, 3 seeds", "+0.200 [-0.048, +0.448]")


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
    """The text before and after the table is kept."""
    page = tmp_path / "tasks.md"
    page.write_text(PAGE)
    replace_results(page, "## Results\n", "Written by a run.", Table(head=("run",), rows=(("babyai",),)))
    text = page.read_text()
    assert text.startswith("# Tasks\n\n## Results\n\nWritten by a run.\n\n| run |\n")
    assert "old" not in text
    assert text.endswith("| babyai |\n\nProse.\n\n## BabyAI\n\n| a | table |\n")


def test_runs_that_are_not_repeated_keep_their_rows(tmp_path: Path):
    """With the cells that are empty."""
    page = tmp_path / "tasks.md"
    page.write_text(PAGE)
    kept = kept_rows(page)
    babyai = {"babyai, seed 1": [("babyai, seed 1", "0.0%"), ("babyai, seed 1: larger", "")]}
    assert kept == {"babyai": babyai, "triage": {"triage, seed 1": [("triage, seed 1", "5.0%")]}}


def test_rows_of_a_family_pool_its_seeds():
    """Gains .1 and .3: mean .2, standard error .1, times t(.975, 1) = 12.706 gives 1.271. A single gain is not pooled.

    Seeds are in the order of their numbers, before the controls.
    """
    names = ("desk, seed 10", "desk, negated reward", "desk, seed 2", "desk, constant reward")
    gains = {"desk, seed 10": "+0.100 [0, 1]", "desk, seed 2": "+0.300 [0, 1]"}
    runs = {name: [(name, "", "", "", gains.get(name, "-0.5"))] for name in names}
    assert [(row[0], row[4]) for row in family_rows("desk", runs)] == [
        ("desk, seed 2", "+0.300 [0, 1]"),
        ("desk, seed 10", "+0.100 [0, 1]"),
        ("desk, 2 seeds", "+0.200 [-1.071, +1.471]"),
        ("desk, constant reward", "-0.5"),
        ("desk, negated reward", "-0.5"),
    ]
    runs["desk, seed 2"] = [("desk, seed 2", "–", "–", "–", "–")]
    assert "desk, 2 seeds" not in [row[0] for row in family_rows("desk", runs)]


def test_a_page_without_the_section_is_refused(tmp_path: Path):
    (tmp_path / "tasks.md").write_text("# Tasks\n")
    with pytest.raises(ValueError, match="substring not found"):
        replace_results(tmp_path / "tasks.md", "## Results\n", "", Table(head=("run",), rows=()))
