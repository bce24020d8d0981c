"""GSM8K: word problems with a final answer."""

from __future__ import annotations

import json

import pytest


def test_the_final_answer_is_a_fact_and_the_solution_a_reference(folder, ingested):
    """Calculator marks are removed from the solution, commas from the answer."""
    row = {"question": "How many?", "answer": "He has <<800*2=1600>>1600.\n#### 1,600"}
    _, (scenario,) = ingested("gsm8k", folder({"train.jsonl": [row]}))
    assert scenario.user_responses == ("How many?",)
    assert scenario.expected.facts == ("1600",)
    assert scenario.expected.responses == ("He has 1600.",)


@pytest.mark.parametrize("answer", ["He has 5.", "#### ", "#### five", "5 #### 5 apples"])
def test_an_answer_without_a_final_number_is_quarantined(folder, ingested, answer):
    """Such an answer could not be verified."""
    rows = [{"question": "How many?", "answer": text} for text in (answer, "#### -5")]
    counts, (scenario,) = ingested("gsm8k", folder({"train.jsonl": rows}))
    assert counts.reasons == {"no final answer": 1}
    assert scenario.expected.facts == ("-5",)


def test_longer_solutions_are_harder(folder, ingested):
    """Two lines are easy, three medium, five hard."""
    rows = [{"question": f"{n}?", "answer": "a\n" * n + "#### 1"} for n in (2, 3, 5)]
    _, scenarios = ingested("gsm8k", folder({"train.jsonl": rows}))
    assert [s.metadata.difficulty for s in scenarios] == ["easy", "medium", "hard"]


def test_every_published_problem_is_a_scenario(published, ingested):
    """7473 problems, each with the number that its answer ends in."""
    folder = published("gsm8k")
    raw = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    counts, scenarios = ingested("gsm8k", folder)
    assert counts.records == counts.scenarios == len(raw) == 7473
    finals = [float(row["answer"].split("####")[1].replace(",", "")) for row in raw]
    assert [float(s.expected.facts[0]) for s in scenarios] == finals
