"""Data gate: leakage, duplicates, missing expected outcomes and the balance of categories."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenarios.expectations import SuiteResult, validate
from grpo.scenarios.scenario import Expected, Metadata, Scenario, SplitName
from grpo.scenarios.split import assign_split
from grpo.scenarios.table import text_digest, write_scenarios

pytestmark = pytest.mark.filterwarnings(
    "ignore:module 'sre_(constants|parse)' is deprecated:DeprecationWarning"  # Great Expectations imports them
)

DONE = Expected(responses=("Done.",))
GOOD = (
    Scenario(id="a", user_responses=("Where is my order?",), split="train", expected=DONE),
    Scenario(id="b", user_responses=("Thanks.", "Bye."), split="heldout", expected=DONE),
    Scenario(id="c", goal="a refund", expected=DONE),
)
TEXT = "My parcel with the order number {} has not arrived since Monday, please find out where it is and call me back."
"""Texts of 112 characters that differ in two digits: the shingles of at most 6 of 107 positions, Jaccard ≥ 101/113."""


def write(path: Path, scenarios: tuple[Scenario, ...] | list[Scenario]) -> Path:
    """A table of these scenarios."""
    write_scenarios(path, scenarios)
    return path


def run(folder: Path, *scenarios: Scenario, previous: tuple[Scenario, ...] | None = None) -> SuiteResult:
    """Validate a table of these scenarios at a validation fraction of a quarter."""
    return validate(
        write(folder / "scenarios.parquet", scenarios),
        folder / "docs",
        validation_fraction=0.25,
        previous_path=None if previous is None else write(folder / "previous.parquet", previous),
    )


def categories(**counts: int) -> tuple[Scenario, ...]:
    """So many scenarios of each category, all with an expected outcome."""
    return tuple(
        Scenario(id=f"{name} {k}", goal=f"{name} {k}", metadata=Metadata(category=name), expected=DONE)
        for name, count in counts.items()
        for k in range(count)
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[SuiteResult, Path]:
    """Result and Data Docs of a table that meets every expectation."""
    folder = tmp_path_factory.mktemp("good")
    return run(folder, *GOOD), folder / "docs"


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Error and Data Docs of a table with a text in both splits, under an id that is markup."""
    folder = tmp_path_factory.mktemp("leaky")
    leak = Scenario(id="<script>alert(1)</script>", user_responses=("where is my ORDER",), split="heldout")
    with pytest.raises(DataError) as caught:
        run(folder, *GOOD, leak)
    return str(caught.value), folder / "docs"


def test_a_good_table_passes_with_the_observed_counts(good: tuple[SuiteResult, Path]) -> None:
    """Each result has its expectation, column and number of unexpected rows."""
    observed = {check.name.partition("(")[2]: check.observed for check in good[0].checks}
    assert observed["declared_splits)"] == "0 of 3 unexpected"
    assert observed["missing_expected)"] == "0 of 1 unexpected"
    assert good[0].warnings == ()


def test_data_docs_show_every_expectation_with_its_result(good: tuple[SuiteResult, Path]) -> None:
    """2 + 1 + 1 expectations in three parts, each with its meaning and bounds."""
    result, docs = good
    page = (docs / result.docs_index).read_text(encoding="utf-8")
    assert [f'id="{suite}"' in page for suite in ("scenarios", "heldout", "sources", "categories")] == [True] * 3 + [
        False
    ]
    assert (page.count('class="passed"'), page.count('class="failed"'), page.count('class="warning"')) == (4, 0, 0)
    assert "held-out texts are not near duplicates of training texts (leakage)" in page
    assert "expect_column_values_to_be_between(training_similarity) mostly: 0.9, max_value: 0.9" in page


def test_data_docs_refer_to_nothing_outside_themselves(good: tuple[SuiteResult, Path]) -> None:
    """One file, in which no element loads another and no link leaves it."""
    files = [path for path in good[1].rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["index.html"]
    page = files[0].read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|<link|<script|url\(", page)


def test_markup_of_a_source_is_shown_as_text_in_the_data_docs(leaky: tuple[str, Path]) -> None:
    """The docs are written before the table is rejected, and name its rows."""
    page = (leaky[1] / "index.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "2 of 4 rows, first ids a, &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert 'class="failed"' in page


def test_a_text_that_is_declared_in_both_splits_is_leakage(leaky: tuple[str, Path]) -> None:
    """`a` is trained on, and a scenario with the same normalized text is held out."""
    assert "no text is declared both train and heldout (leakage)" in leaky[0]
    assert "first ids a, <script>" in leaky[0]


def near_duplicates(split: SplitName | None = None) -> list[Scenario]:
    """40 scenarios with texts that differ in a number; without a declared split the hash assigns it."""
    return [
        Scenario(id=f"{k}", user_responses=(TEXT.format(k),), split=split if k % 4 else split and "heldout")
        for k in range(10, 50)
    ]


@pytest.mark.parametrize("split", [None, "train"])
def test_near_duplicates_across_the_splits_are_leakage(tmp_path: Path, split: SplitName | None) -> None:
    """Every held-out text has a near duplicate in training, for declared splits and for those of the hash."""
    scenarios = near_duplicates(split)
    heldout = [s for s in scenarios if (s.split or assign_split(text_digest(s), share=0.25)) == "heldout"]
    message = rf"near duplicates of training texts \(leakage\): .*{len(heldout)} of {len(heldout)} rows"
    with pytest.raises(DataError, match=message):
        run(tmp_path, *scenarios)


def test_a_few_near_duplicates_are_allowed(tmp_path: Path) -> None:
    """1 of 20 held-out texts is less than a tenth; without a validation fraction only declared splits count."""
    words = [f"{k} {'abcdefghij'[k % 10] * 5} {k * 7919}" for k in range(38)]
    table = [
        Scenario(id=f"s{k}", goal=text, split="train" if k % 2 else "heldout", expected=DONE)
        for k, text in enumerate([*words, TEXT.format(11), TEXT.format(12)])
    ]
    (result,) = [c for c in run(tmp_path, *table).checks if "training_similarity" in c.name]
    assert result.observed == "1 of 20 unexpected"
    path = write(tmp_path / "undeclared.parquet", near_duplicates())
    assert "0 of 0 unexpected" in {check.observed for check in validate(path, tmp_path / "docs").checks}


def test_copies_under_other_ids_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """2 of 4 scenarios are the same but for id and punctuation; another outcome makes another scenario."""
    copy = GOOD[2].model_copy(update={"id": "d", "goal": "a refund!"})
    result = run(tmp_path, *GOOD, copy, GOOD[2].model_copy(update={"id": "e", "expected": Expected(facts=("7",))}))
    (warning,) = result.warnings
    assert "scenarios differ in more than their ids (duplicates)" in warning
    assert "2 of 5 rows, first ids c, d, values 1, 1" in warning
    assert warning in caplog.text
    page = (tmp_path / "docs" / result.docs_index).read_text(encoding="utf-8")
    assert (page.count('class="passed"'), page.count('class="warning"')) == (3, 1)


def test_scenarios_without_an_expected_outcome_are_a_warning_unless_all_are(tmp_path: Path) -> None:
    """Half of source `mixed` has one: 0.5 is missing. Source `chats` has none for any."""
    scenarios = [
        Scenario(id=f"{source} {k}", goal=f"{source} {k}", metadata=Metadata(source=source), expected=expected)
        for source, outcomes in (("mixed", (DONE, Expected())), ("chats", (Expected(), Expected())))
        for k, expected in enumerate(outcomes)
    ]
    (warning,) = run(tmp_path, *scenarios).warnings
    assert "a source has an expected outcome for all of its scenarios, or for none" in warning
    assert "1 of 2 rows, first ids mixed, values 0.5" in warning


def test_a_changed_balance_of_categories_is_a_warning(tmp_path: Path) -> None:
    """Returns from 30/60 to 60/60, refunds from 30/60 to none; a category of 19 may go without a warning."""
    before = categories(returns=30, refunds=30)
    shares, missing = run(tmp_path, *categories(returns=60), previous=before).warnings
    assert "categories keep their shares of the last version (balance)" in shares
    assert "2 of 2 rows, first ids refunds, returns, values -0.5, 0.5" in shares
    assert "categories with 20 scenarios in the last version still have some" in missing
    assert "1 of 2 rows, first ids refunds, values 0" in missing
    small = categories(returns=100, refunds=19)
    assert run(tmp_path, *categories(returns=100, delays=20), previous=small).warnings == ()


def test_an_unreadable_last_version_is_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its table may have an older schema: the run goes on with a warning in the log."""
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "previous.parquet")
    table = write(tmp_path / "scenarios.parquet", GOOD)
    result = validate(table, tmp_path / "docs", previous_path=tmp_path / "previous.parquet")
    assert len(result.checks) == 4
    assert "categories are not compared with the last version" in caplog.text


def test_another_table_is_an_error(tmp_path: Path) -> None:
    """A table without the schema of scenarios is an error before any expectation is computed."""
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="schema version none"):
        validate(tmp_path / "other.parquet", tmp_path / "docs")
