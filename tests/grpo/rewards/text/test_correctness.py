from __future__ import annotations

import pytest

from grpo.errors import Unscored
from grpo.rewards import CorrectnessReward, SimilarityReward
from grpo.rewards.text.facts import fact_score
from tests.grpo.rewards.scoring import scored

FACT = "Refunds take 5 days"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Your refund takes 5 days.", 1.0),
        ("We refund it. That takes 5 days.", 1.0),
        ("A refund doesn't take 5 days.", 0.0),
        ("Your refund takes 7 days.", 0.0),
        ("Have a nice day.", 0.0),
        ("I can't say why, but refunds take 5 days.", 1.0),
    ],
)
def test_a_fact_is_stated_with_its_numbers_and_without_a_denial(reply: str, expected: float):
    """The denial of another clause does not count."""
    assert fact_score(FACT, reply) == expected


def test_a_fact_may_be_a_denial():
    """A denial states it."""
    assert fact_score("The screen is not covered", "The screen is not covered.") == 1.0
    assert fact_score("The screen is not covered", "The screen is covered.") == 0.0


@pytest.mark.parametrize(("reply", "expected"), [("24 + 48 = 72, so 72.", 1.0), ("It is not 72.", 0.0), ("73", 0.0)])
def test_a_number_is_compared_with_the_final_answer(reply: str, expected: float):
    """The last number of a worked solution."""
    assert scored(CorrectnessReward(), "How many clips?", reply, facts=("72",)).score == expected


def test_half_of_the_facts_is_half_correct():
    """1 of 2 → .5"""
    reply = "Your refund will take 5 days."
    assert scored(CorrectnessReward(), "And now?", reply, facts=(FACT, "Delivery is free")).score == 0.5


def test_a_list_of_words_states_no_fact():
    """Stuffed with the right words and numbers."""
    stuffed = "refunds take 5 days delivery free refunds days money parcel order customer card"
    assert scored(CorrectnessReward(), "And now?", stuffed, facts=(FACT,)).score < 0.5


def test_a_score_needs_an_expectation():
    """None is not 0."""
    with pytest.raises(Unscored, match=r"expected\.facts"):
        scored(CorrectnessReward(), "Hi", "Hello, how are you?")
    with pytest.raises(Unscored, match=r"expected\.responses"):
        scored(SimilarityReward(), "Hi", "Hello, how are you?")


def test_similarity_is_the_overlap_with_the_nearest_expected_reply():
    """Content words {parcel, leave, today} of {parcel, leave, tomorrow}: 2·2 / 6"""
    result = scored(
        SimilarityReward(expected=["We sell tea."]),
        "When?",
        "The parcel will leave here today.",
        responses=("Your parcel will leave tomorrow.",),
    )
    assert result.score == pytest.approx(4 / 6)
