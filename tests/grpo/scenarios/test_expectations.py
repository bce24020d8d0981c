"""Data gate: leakage, duplicates, missing expected outcomes and the balance of categories."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenario import Expected, Metadata, Scenario, SplitName
from grpo.scenarios.expectations import SuiteResult, validate
from grpo.scenarios.split import assign_split, split
from grpo.scenarios.table import start_digest, write_scenarios

pytestmark = pytest.mark.filterwarnings(
    "ignore:module 'sre_(constants|parse)' is deprecated:DeprecationWarning"  # Great Expectations imports them
)

DONE = Expected(facts=("Done.",))
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
    assert "held-out texts are not near duplicates of training texts with the same world (leakage)" in page
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
    assert "2 of 4 scenarios start as others of the other declared split do, with the same text and world" in leaky[0]
    assert "(leakage): a, <script>" in leaky[0]
    assert "Declare both in one split" in leaky[0]


def near_duplicates(declared: SplitName | None = None) -> list[Scenario]:
    """40 scenarios with texts that differ in a number; without a declared split the hash assigns it."""
    return [
        Scenario(id=f"{k}", user_responses=(TEXT.format(k),), split=declared if k % 4 else declared and "heldout")
        for k in range(10, 50)
    ]


@pytest.mark.parametrize("declared", [None, "train"])
def test_near_duplicates_across_the_splits_are_leakage(tmp_path: Path, declared: SplitName | None) -> None:
    """Every held-out text has a near duplicate in training, for declared splits and for those of the hash."""
    scenarios = near_duplicates(declared)
    heldout = [s for s in scenarios if (s.split or assign_split(start_digest(s), share=0.25)) == "heldout"]
    message = (
        rf"{len(heldout)} of {len(heldout)} held-out texts are near duplicates of training texts with the same world "
    )
    with pytest.raises(DataError, match=message):
        run(tmp_path, *scenarios)


def seeds(count: int, *, world: bool = True, identity: bool = False) -> list[Scenario]:
    """Scenarios of one text, told apart by the seed of their world, by an identity, or by nothing but their ids."""
    return [
        Scenario(
            id=f"level {k}",
            user_responses=("Go to the green ball.",),
            world={"level": "GoToLocal", "seed": k} if world else {"level": "GoToLocal"},
            metadata=Metadata(identity=f"seed {k}" if identity else ""),
            split=None if world or identity else ("heldout" if k % 4 == 0 else "train"),
            expected=DONE,
        )
        for k in range(count)
    ]


def test_400_seeds_of_one_world_pass(tmp_path: Path) -> None:
    """One text, 400 worlds: both splits have some, and no held-out scenario is a near duplicate."""
    result = run(tmp_path, *seeds(400))
    splits = split(tmp_path / "scenarios.parquet", validation_fraction=0.25, limit=None)
    (near,) = [check for check in result.checks if "training_similarity" in check.name]
    assert near.observed == f"0 of {len(splits.heldout)} unexpected"
    assert len(splits.train) + len(splits.heldout) == 400
    assert 60 < len(splits.heldout) < 140  # of 400 at a quarter: 100 ± 4.6 standard deviations of 8.7
    assert result.warnings == ()


def test_a_stated_identity_tells_scenarios_apart(tmp_path: Path) -> None:
    """The same text and world, with identities: they pass, and a scenario of the same identity is in the same split."""
    scenarios = seeds(40, world=False, identity=True)
    again = scenarios[3].model_copy(update={"id": "other words", "user_responses": ("Walk to the ball.",)})
    assert run(tmp_path, *scenarios, again).warnings == ()
    splits = split(tmp_path / "scenarios.parquet", validation_fraction=0.25, limit=None)
    assert ("other words" in splits.train) == ("level 3" in splits.train)


def test_duplicates_in_text_and_world_are_refused(tmp_path: Path) -> None:
    """One text in one world, under 40 ids that are declared in both splits."""
    with pytest.raises(DataError, match="40 of 40 scenarios start as others of the other declared split do"):
        run(tmp_path, *seeds(40, world=False))


def test_near_duplicates_in_one_world_are_leakage(tmp_path: Path) -> None:
    """The order of the keys of a world makes no difference; another world in the table makes none either."""
    worlds: tuple[dict[str, int], ...] = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    alike = [s.model_copy(update={"world": worlds[k % 2]}) for k, s in enumerate(near_duplicates())]
    with pytest.raises(DataError, match="held-out texts are near duplicates of training texts with the same world"):
        run(tmp_path, *alike)


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
    assert warning.startswith("2 of 5 scenarios are copies of others in all but their ids (duplicates): c, d. Remove")
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
    assert "some scenarios expect nothing while others of their source do: 1 of 2 of source mixed (mixed 1)" in warning
    assert "give them `expected`" in warning
    assert "expect_column" not in warning


def test_a_changed_balance_of_categories_is_a_warning(tmp_path: Path) -> None:
    """Returns from 30/60 to 60/60, refunds from 30/60 to none; a category of 19 may go without a warning."""
    before = categories(returns=30, refunds=30)
    shares, missing = run(tmp_path, *categories(returns=60), previous=before).warnings
    assert shares.endswith("since the last version (balance): refunds, returns, by -0.5, 0.5")
    assert missing == "categories with 20 scenarios in the last version have none now: refunds"
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
