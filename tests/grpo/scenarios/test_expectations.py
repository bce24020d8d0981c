"""Expectations: what a table must show, and how a failure is told."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenarios.expectations import SuiteResult, validate
from grpo.scenarios.ingest import IngestCounts
from grpo.scenarios.scenario import Expected, Metadata, Scenario
from grpo.scenarios.table import QUARANTINE_SCHEMA, write_scenarios

pytestmark = pytest.mark.filterwarnings(
    "ignore:module 'sre_(constants|parse)' is deprecated:DeprecationWarning"  # Great Expectations imports them
)

GOOD = (
    Scenario(id="a", user_responses=("Where is my order?",), split="train"),
    Scenario(id="b", user_responses=("Thanks.", "Bye."), split="heldout"),
    Scenario(id="c", goal="a refund"),
)


def unchecked(name: str, *turns: str) -> Scenario:
    """A scenario that validation would refuse."""
    return Scenario.model_construct(
        id=name,
        topic="",
        domain="general",
        user_responses=turns,
        goal="",
        context="",
        tools=(),
        world={},
        expected=Expected(),
        metadata=Metadata(),
        split=None,
    )


def run(folder: Path, scenarios: tuple[Scenario, ...], counts: IngestCounts) -> SuiteResult:
    """Validate a table of these scenarios and an empty quarantine."""
    write_scenarios(folder / "scenarios.parquet", scenarios)
    pq.write_table(QUARANTINE_SCHEMA.empty_table(), folder / "quarantine.parquet")
    return validate(
        folder / "scenarios.parquet",
        folder / "quarantine.parquet",
        counts,
        folder / "docs",
        max_quarantined_fraction=0.05,
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[SuiteResult, Path]:
    """A table that meets every expectation, and where its docs are."""
    folder = tmp_path_factory.mktemp("good")
    return run(folder, GOOD, IngestCounts(records=3, scenarios=3, quarantined=0, reasons={})), folder / "docs"


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What is said of a table with many faults, and where its docs are."""
    folder = tmp_path_factory.mktemp("refused")
    faulty = (
        *GOOD,
        unchecked("twice", "Hello."),
        unchecked("twice", "Good day."),
        unchecked("mute", "Hi.", "  "),
        unchecked("nobody"),
        Scenario(id="leak", user_responses=("where is my ORDER",), split="heldout"),
    )
    with pytest.raises(DataError) as caught:
        run(folder, faulty, IngestCounts(records=10, scenarios=8, quarantined=1, reasons={"broken JSON": 1}))
    return str(caught.value), folder / "docs"


def test_a_good_table_passes_with_what_was_observed(good: tuple[SuiteResult, Path]) -> None:
    """Each check names its expectation and column, and what it found."""
    observed = {check.name: check.observed for check in good[0].checks}
    assert observed["expect_column_values_to_be_unique(id)"] == "0 of 3 unexpected"
    assert observed["expect_column_max_to_be_between(quarantined_share)"] == "0.0"


def test_data_docs_show_every_expectation_with_what_was_observed(good: tuple[SuiteResult, Path]) -> None:
    """The page is where the result says: 2 + 14 + 4 expectations in three parts, each with its meaning."""
    validation, docs = good
    page = (docs / validation.docs_index).read_text(encoding="utf-8")
    assert [f'id="{suite}"' in page for suite in ("columns", "scenarios", "ingestion")] == [True] * 3
    assert (page.count('class="passed"'), page.count('class="failed"')) == (20, 0)
    assert "an id names one scenario" in page
    assert "expect_column_max_to_be_between(quarantined_share) max_value: 0.05" in page


def test_data_docs_refer_to_nothing_outside_themselves(good: tuple[SuiteResult, Path]) -> None:
    """One file, in which no element loads another and no link leaves it."""
    files = [path for path in good[1].rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["index.html"]
    page = files[0].read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|<link|<script|url\(", page)


def test_words_of_a_source_stay_words_in_the_data_docs(tmp_path: Path) -> None:
    """Markup in the id of a record is shown, not run."""
    with pytest.raises(DataError):
        run(
            tmp_path,
            (unchecked("<script>alert(1)</script>", "  "),),
            IngestCounts(records=1, scenarios=1, quarantined=0, reasons={}),
        )
    page = (tmp_path / "docs" / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "first ids &lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_an_id_that_stands_twice_is_named(refused: tuple[str, Path]) -> None:
    """Two rows with one id."""
    assert "an id names one scenario: expect_column_values_to_be_unique(id) 2 of 8 rows, first ids twice" in refused[0]


def test_an_empty_turn_is_named(refused: tuple[str, Path]) -> None:
    """Spaces are no words: the shortest turn of `mute` has 0 characters."""
    assert "no user turn is empty" in refused[0]
    assert "1 of 8 rows, first ids mute, values 0" in refused[0]


def test_a_scenario_without_a_user_is_named(refused: tuple[str, Path]) -> None:
    """Neither a script nor a goal."""
    assert "every scenario has a user" in refused[0]
    assert "first ids nobody" in refused[0]


def test_a_text_that_is_declared_on_both_sides_is_named(refused: tuple[str, Path]) -> None:
    """`a` is trained on and `leak` held out, with the same words: leakage."""
    assert "no text is declared both train and heldout (leakage)" in refused[0]
    assert "2 of 8 rows, first ids a, leak" in refused[0]


def test_too_many_quarantined_records_are_told(refused: tuple[str, Path]) -> None:
    """1 of 10 is more than 5 %."""
    assert "expect_column_max_to_be_between(quarantined_share) observed 0.1" in refused[0]


def test_records_that_are_in_no_table_are_told(refused: tuple[str, Path]) -> None:
    """8 + 1 is not 10, and the quarantine holds none instead of 1."""
    assert "records = scenarios + quarantined" in refused[0]
    assert "every other record is in quarantine" in refused[0]


def test_data_docs_name_the_rows_of_a_refused_table(refused: tuple[str, Path]) -> None:
    """They are written before the table is refused, and show what the error says."""
    page = (refused[1] / "index.html").read_text(encoding="utf-8")
    assert "2 of 8 rows, first ids twice" in page
    assert 'class="failed"' in page


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    """A table that is not of scenarios is an error before any expectation is asked."""
    pq.write_table(QUARANTINE_SCHEMA.empty_table(), tmp_path / "other.parquet")
    counts = IngestCounts(records=1, scenarios=1, quarantined=0, reasons={})
    with pytest.raises(DataError, match="schema version none"):
        validate(
            tmp_path / "other.parquet",
            tmp_path / "other.parquet",
            counts,
            tmp_path / "docs",
            max_quarantined_fraction=0.05,
        )
