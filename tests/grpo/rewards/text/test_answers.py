from __future__ import annotations

import json
from fractions import Fraction

import pytest

from grpo.rewards.text.answers import final_answer, numbers, parse_quantity
from tests.places import PUBLISHED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48/2 = <<48/2=24>>24 clips in May.\n#### 72", 72),
        ("#### 1,200", 1200),
        ("The answer is $1,200.00.", 1200),
        ("So she earned 1 200 dollars", 1200),
        ("… = \\boxed{1200}", 1200),
        ("\\boxed{\\frac{3}{4}}", Fraction(3, 4)),
        ("The answer: **18** eggs", 18),
        ("He has 3/4 of it", Fraction(3, 4)),
        ("It takes 1 1/2", Fraction(3, 2)),
        ("It takes 2½", Fraction(5, 2)),
        ("The balance is -$5", -5),
        ("It grew by 12.5%", Fraction(25, 2)),
        ("240 / 6 = 40 minutes to fill 240 packets", 40),
        ("It is not 42 but 43.", 43),
        ("The answer is 12, not 7.", 12),
        ("Room 7 is free. The answer is 12 and that is all 4 of us need.", 4),
        ("no number here", None),
    ],
)
def test_the_final_answer_is_read_in_the_forms_that_occur(text: str, expected: float | None):
    """Marks, boxes, money, gaps between thousands, fractions, units."""
    assert final_answer(text) == expected


@pytest.mark.parametrize("text", ["The answer is not 42.", "It isn't 42", "42 is not the answer", "It can't be 42."])
def test_a_denied_number_is_not_an_answer(text: str):
    """Nothing is asserted."""
    assert final_answer(text) is None
    assert numbers(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$1,200.00", 1200), ("#### 72", 72), ("5 km", 5), ("-3", -3), ("Delivery takes 5 days", None), ("", None)],
)
def test_a_quantity_is_a_number_and_a_unit_at_most(text: str, expected: int | None):
    """A sentence with a number is not a quantity."""
    assert parse_quantity(text) == expected


@pytest.fixture(scope="module")
def solutions() -> list[tuple[str, str]]:
    """Worked solutions of GSM8K and their labels, as text."""
    path = PUBLISHED / "gsm8k" / "train.jsonl"
    if not path.exists():
        pytest.skip(f"GSM8K is not at {path}")
    answers = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [(worked.strip(), label.strip()) for worked, _, label in (answer.partition("####") for answer in answers)]


@pytest.mark.parametrize(
    ("form", "least"),
    [
        ("{worked}\n#### {label}", 0.995),
        ("{worked}\nThe answer is ${label}.00.", 0.995),
        ("{worked} \\boxed{{{label}}}", 0.995),
        ("{worked}\nSo the final answer is **{label}** in all.", 0.995),
        ("{worked}", 0.985),  # nothing marks the answer; what is missed ends with another number, "for 12 days"
    ],
)
def test_final_answers_of_gsm8k_agree_with_its_labels(solutions: list[tuple[str, str]], form: str, least: float):
    """7,473 solutions, with the calculator's marks in them."""
    hits = sum(
        final_answer(form.format(worked=worked, label=label)) == Fraction(label.replace(",", ""))
        for worked, label in solutions
    )
    assert hits / len(solutions) >= least


def test_no_denied_and_no_neighbouring_answer_of_gsm8k_is_taken_for_the_label(solutions: list[tuple[str, str]]):
    """ "not 72" and 73 are both wrong."""
    for worked, label in solutions:
        value = Fraction(label.replace(",", ""))
        assert final_answer(f"{worked}\nThe answer is not {label}.") != value
        assert final_answer(f"{worked}\nThe answer is {value + 1}.") != value


@pytest.mark.parametrize(
    "text", ["9" * 5000, "1." + "9" * 5000, "1/" + "9" * 5000, "1 1/" + "9" * 5000, "-" + "9" * 301]
)
def test_a_number_of_more_than_300_digits_is_not_read(text: str):
    """A policy in a loop of digits writes them; Python converts at most 4,300, and floats end at 308."""
    assert numbers(f"It is {text} or 7.") == [7]
    assert final_answer(f"#### {text}") is None
    assert parse_quantity(text) is None
    assert numbers("9" * 300) == [int("9" * 300)]
