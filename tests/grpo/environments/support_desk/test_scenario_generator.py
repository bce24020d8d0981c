"""Generated scenarios of the support desk."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest

from grpo.environments.support_desk.scenario_generator import Phrasebook, expand_alternatives, generate_scenarios
from tests.places import ROOT

BOOKS = ROOT / "data" / "scenarios"


@pytest.fixture(scope="module")
def books() -> tuple[Phrasebook, Phrasebook]:
    return (
        Phrasebook.load(BOOKS / "phrasebook_demonstrations.yaml"),
        Phrasebook.load(BOOKS / "phrasebook_scenarios.yaml"),
    )


def _all(sentences: Sequence[str]) -> set[str]:
    """Every expansion of some sentences, without punctuation and case."""
    expansions = (wording for sentence in sentences for wording in expand_alternatives(sentence))
    return {" ".join(re.findall(r"[\w'{}]+", wording.casefold())) for wording in expansions}


def test_a_sentence_expands_to_all_combinations_of_its_alternatives():
    """Two times two."""
    assert list(expand_alternatives("[a|b] x [c|d].")) == ["a x c.", "a x d.", "b x c.", "b x d."]


def test_demonstrations_and_scenarios_share_no_name_item_wording_or_order(books: tuple[Phrasebook, Phrasebook]):
    """Memorized demonstrations do not solve scenarios."""
    left, right = books
    for field in ("first_names", "last_names", "items"):
        assert not set(getattr(left, field)) & set(getattr(right, field)), field
    for field in ("frames", "numbers", "corrections"):
        assert not _all(getattr(left, field)) & _all(getattr(right, field)), field
    for category, complaints in left.complaints.items():
        assert not _all(complaints) & _all(right.complaints[category])
    assert not set(left.orders()) & set(right.orders())


def test_generated_scenarios_cover_categories_difficulties_and_both_sides_of_each_rule(
    books: tuple[Phrasebook, Phrasebook],
):
    """150 of each category: 30 easy, 60 medium, 60 hard; the rule favours the customer in 40 to 60 % of them."""
    cases = list(itertools.islice(generate_scenarios(books[1], seed=0, prefix="x"), 600))
    for category in ("return", "broken", "missing", "charge"):
        mine = [case for case in cases if case.metadata.category == category]
        assert [sum(c.metadata.difficulty == d for c in mine) for d in ("easy", "medium", "hard")] == [30, 60, 60]
        favoured = [c for c in mine if c.expected.calls and c.expected.calls[0]["name"] != "escalate"]
        assert 60 <= len(favoured) <= 90


def test_expected_calls_follow_the_rules(books: tuple[Phrasebook, Phrasebook]):
    """They follow from the record of every generated scenario."""
    for case in itertools.islice(generate_scenarios(books[1], seed=1, prefix="x"), 300):
        ((order, record),) = case.world["orders"].items()
        names = [c["name"] for c in case.expected.calls]
        expected = {
            "return": ["refund"] if record["days"] <= 30 else [],
            "broken": ["replace"] if record["price"] < 100 else ["escalate"],
            "missing": ["refund"] if record["state"] == "lost" else [],
            "charge": ["refund"] if record["charges"] == 2 else [],
        }[case.metadata.category]
        assert names == expected
        assert all(c["arguments"]["order"] == order for c in case.expected.calls)
        assert case.user_responses[-1].count(order) == 1
