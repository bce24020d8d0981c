"""CIMA: exercises with several tutors' replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.scenarios.reward_data import read_labels

RULES = json.dumps([["Adjectives follow the noun.", "Always."]])


def exercise(rules: str = RULES, **more: Any) -> dict[str, Any]:
    """An exercise of four turns with two replies."""
    return {
        "past_convo": ["Fill in the blank. ", "What is tree?", "L'albero.", "rosa l'albero?"],
        "img": '"pictures/x.png"',
        "prep": "e dietro",
        "engPrep": "is behind",
        "obj": "l'albero",
        "engObj": "tree",
        "color": "rosa",
        "engColor": "pink",
        "grammarRules": rules,
        "studentActions": ["False", "True", "False", "True"],
        "tutorResponses": ["Almost. What about the order?", "No."],
        "tutorActions": [[True, True, False, False, False], [False, False, True, False, False]],
        "tutorKeys": [],
        **more,
    }


def source(folder: Any, **exercises: Any) -> Any:
    """A folder with these exercises by id."""
    return folder({"dataset.json": {"prepDataset": exercises, "shapeDataset": {}}})


def test_every_other_turn_is_the_students(folder, ingested):
    """The tutor's opening, the words and the rules are context; all tutors' replies are references."""
    _, (scenario,) = ingested("cima_tutoring", source(folder, a=exercise()))
    assert scenario.user_responses == ("What is tree?", "rosa l'albero?")
    assert scenario.context.splitlines() == [
        "tree: l'albero",
        "is behind: e dietro",
        "pink: rosa",
        "Adjectives follow the noun.",
        "Tutor: Fill in the blank.",
    ]
    assert scenario.expected.responses == ("Almost. What about the order?", "No.")
    assert scenario.metadata.category == "question"


def test_text_after_the_rules_is_left_out(folder, ingested):
    """A third of the published rules are followed by the rest of another document."""
    rules = RULES + ', "old_classif": ["False"], "table": ""}"'
    _, (scenario,) = ingested("cima_tutoring", source(folder, a=exercise(rules)))
    assert "old_classif" not in scenario.context
    assert "Adjectives follow the noun." in scenario.context


def test_broken_exercises_are_quarantined(folder, ingested):
    """Rules that are not JSON, an action that is neither true nor false, and a number in place of an object."""
    broken = {"b": exercise("no rules"), "c": exercise(studentActions=["Maybe"] * 4), "d": 5}
    counts, _ = ingested("cima_tutoring", source(folder, a=exercise(), **broken))
    assert counts.records == 4
    assert counts.reasons == {"grammar rules are not JSON": 1, "not as published": 1, "not an object": 1}


def test_a_document_without_exercises_is_an_error(folder, ingested):
    """The message names the file."""
    with pytest.raises(DataError, match=r"dataset\.json holds no exercises by id"):
        ingested("cima_tutoring", source(folder))


def test_each_reply_is_labelled_with_its_tutors_actions(folder):
    """Several actions are joined; an exercise with more replies than actions is one quarantined record."""
    parsed = read_labels("cima_tutoring", source(folder, a=exercise(), b=exercise(tutorResponses=["1", "2", "3"])))
    assert [(item.label, item.group) for item in parsed.items] == [
        ("question+hint", "cima-a"),
        ("correction", "cima-a"),
    ]
    assert [message.role for message in parsed.items[0].prompt] == ["assistant", "user", "assistant", "user"]
    assert (parsed.records, sum(parsed.reasons.values())) == (3, 1)


def test_every_published_exercise_is_a_scenario_and_every_reply_labelled(published, ingested):
    """1135 exercises with 3315 replies, all of them used."""
    folder = published("cima_tutoring")
    raw = json.loads((folder / "dataset.json").read_text())["prepDataset"]
    counts, scenarios = ingested("cima_tutoring", folder)
    assert counts.records == counts.scenarios == len(raw) == 1135
    assert sum(len(s.user_responses) for s in scenarios) == sum(len(x["past_convo"]) // 2 for x in raw.values())
    labels = read_labels("cima_tutoring", folder)
    assert (len(labels.items), labels.quarantined) == (sum(len(x["tutorResponses"]) for x in raw.values()), ())
    hints = sum(actions[1] for x in raw.values() for actions in x["tutorActions"])
    assert sum("hint" in item.label.split("+") for item in labels.items) == hints
