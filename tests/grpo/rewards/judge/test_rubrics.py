from __future__ import annotations

import pytest

from grpo.errors import ConfigError
from grpo.rewards.judge.rubrics import RUBRICS, find_rubric

OWN = {"name": "own", "version": 1, "description": "d", "criteria": [{"name": "a", "weight": 1.0, "text": "t"}]}


@pytest.mark.parametrize(
    ("name", "criteria"),
    [
        ("customer_service", {"helpfulness", "truthfulness", "completeness", "empathy", "clarity"}),
        ("technical_support", {"accuracy", "resolution", "safety", "clarity"}),
        ("sales", {"needs", "product_knowledge", "value", "honesty", "next_step"}),
        ("educational", {"correctness", "pedagogy", "clarity", "engagement"}),
        ("creative_writing", {"creativity", "coherence", "style", "request"}),
    ],
)
def test_every_domain_has_its_criteria_with_weights(name: str, criteria: set[str]):
    """Five rubrics ship, and each is what its file is named for."""
    rubric = find_rubric(name)
    assert rubric.name == name
    assert set(rubric.weights) == criteria


def test_no_other_rubric_ships():
    """Every shipped file is covered by a test."""
    assert len(list(RUBRICS.iterdir())) == 5


def test_every_word_of_a_rubric_is_in_its_hash():
    """A changed text, weight or version is another rubric; the same is the same."""
    changed = [
        {**OWN, "version": 2},
        {**OWN, "criteria": [{"name": "a", "weight": 1.0, "text": "u"}]},
        {**OWN, "criteria": [{"name": "a", "weight": 0.5, "text": "t"}, {"name": "b", "weight": 0.5, "text": "t"}]},
    ]
    hashes = {find_rubric(document).hash for document in (OWN, dict(OWN), *changed)}
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("politeness", r"no rubric 'politeness' in .*\. Use one of creative_writing, customer_service, educational"),
        ("../configs/quickstart", "no rubric"),
        (
            {**OWN, "criteria": [{"name": "a", "weight": 0.9, "text": "t"}]},
            r"sum to 0\.9\. Change them so that",
        ),
        ({**OWN, "criteria": [{"name": "a", "weight": 0.5, "text": "t"}] * 2}, "name one criterion twice"),
        ({**OWN, "criteria": []}, "at least 1 item"),
        ({**OWN, "weight": 1}, "Extra inputs"),
    ],
)
def test_a_rubric_that_cannot_be_used_is_refused(document: object, problem: str):
    """With what is wrong, and what there is."""
    with pytest.raises(ConfigError, match=problem):
        find_rubric(document)  # type: ignore[arg-type]
