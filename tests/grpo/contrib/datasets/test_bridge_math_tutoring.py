"""Bridge: moments of tutoring become scenarios, and pairs of an expert's reply over a novice's."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from grpo.messages import Message
from grpo.scenarios.reward_data import read_pairs


def moment(name: str, *texts: str, error: str = "guess", expert: tuple[str, ...] = ("Look again.",)) -> dict[str, Any]:
    """A moment with these lines, `s:` of the student and `t:` of the tutor."""

    def lines(*texts: str) -> list[dict[str, Any]]:
        return [{"user": {"s": "student", "t": "tutor"}[text[0]], "text": text[2:]} for text in texts]

    return {
        "c_id": name,
        "lesson_topic": "Area",
        "c_h": lines(*texts),
        "c_r": lines("t:Wrong.", "t:It is 12."),
        "c_r_": lines(*(f"t:{text}" for text in expert)),
        "e": error,
        "z_what": "ask",
        "z_why": "hint",
    }


def test_the_students_turns_are_the_script_and_the_tutors_opening_the_context(folder, ingested):
    """Consecutive lines are one turn without blank ones; the expert's reply is expected."""
    train = moment("a", "t:Hello.", "t:Area?", "s:4", "s: ", "s:m", "t:And?", "s:5", expert=("Hm.", "", "Multiply."))
    _, scenarios = ingested("bridge_math_tutoring", folder({"train.json": [train], "validation.json": []}))
    (scenario,) = scenarios
    assert scenario.user_responses == ("4\nm", "5")
    assert scenario.context == "Lesson: Area\nTutor: Hello.\nArea?"
    assert scenario.expected.responses == ("Hm.\nMultiply.",)


def test_an_annotators_own_words_become_other(folder, ingested):
    """The six kinds of error are categories."""
    items = [moment("a", "s:4"), moment("b", "s:5", error="No mistake, the student is leaving\n")]
    _, scenarios = ingested("bridge_math_tutoring", folder({"train.json": items, "validation.json": []}))
    assert [s.metadata.category for s in scenarios] == ["guess", "other"]


def test_an_empty_student_turn_and_an_unknown_speaker_are_quarantined(folder, ingested):
    """Three records: one scenario, two in quarantine."""
    strange = moment("c", "s:4")
    strange["c_h"][0]["user"] = "parent"
    files = {"train.json": [moment("a", "s:4"), moment("b", "t:Well?", "s:")], "validation.json": [strange]}
    counts, _ = ingested("bridge_math_tutoring", folder(files))
    assert counts.records == 3
    assert counts.reasons == {"user_responses: user turn N is empty": 1, "not as published": 1}


def test_the_expert_is_preferred_to_the_novice(folder):
    """The prompt is the whole chat; a chat that is also in training belongs to training."""
    files = {"train.json": [moment("a", "t:Area?", "s:4")], "validation.json": [moment("a", "s:4"), moment("b", "s:4")]}
    parsed = read_pairs("bridge_math_tutoring", folder(files))
    pair = parsed.items[0]
    assert pair.prompt == (
        Message(role="system", content="Lesson: Area"),
        Message(role="assistant", content="Area?"),
        Message(role="user", content="4"),
    )
    assert (pair.chosen.content, pair.rejected.content) == ("Look again.", "Wrong.\nIt is 12.")
    assert [(p.group, p.split) for p in parsed.items] == [("a", "train"), ("a", "train"), ("b", "heldout")]


def test_every_published_moment_is_a_scenario_or_quarantined_and_a_pair(published, ingested):
    """419 + 71 moments; in 6 of them a student's turn is empty; 27 chats of the training part come back."""
    folder = published("bridge_math_tutoring")
    parts = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("train", "validation")}
    counts, scenarios = ingested("bridge_math_tutoring", folder)
    assert counts.records == sum(map(len, parts.values())) == 490
    assert (counts.scenarios, counts.reasons) == (484, {"user_responses: user turn N is empty": 6})
    assert Counter(s.split for s in scenarios) == {"train": 413, "heldout": 33, None: 38}
    pairs = read_pairs("bridge_math_tutoring", folder)
    assert (pairs.records, len(pairs.items)) == (490, 490)
    trained = {item["c_id"] for item in parts["train"]}
    both = sum(item["c_id"] in trained for item in parts["validation"])
    assert Counter(pair.split for pair in pairs.items) == {"train": 419 + both, "heldout": 71 - both}
