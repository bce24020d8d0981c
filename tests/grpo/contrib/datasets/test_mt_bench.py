"""MT-bench: questions of two turns, some with references."""

from __future__ import annotations

import json

import pytest

from grpo.errors import DataError


def question(number, **more):
    """A question with two turns."""
    return {"question_id": number, "category": "math", "turns": ["One?", "Two?"], **more}


def answer(number, *turns):
    """GPT-4's answer to it."""
    return {
        "question_id": number,
        "answer_id": "x",
        "model_id": "gpt-4",
        "choices": [{"index": 0, "turns": list(turns)}],
    }


def test_answers_come_before_notes_and_empty_notes_are_left_out(folder, ingested):
    """The first has both, the second notes for one turn alone, the third neither."""
    rows = [question(1, reference=["1", "2"]), question(2, reference=["1", ""]), question(3)]
    files = {"question.jsonl": rows, "reference_answer_gpt-4.jsonl": [answer(1, "One.", "Two.")]}
    _, scenarios = ingested("mt_bench", folder(files))
    assert [s.expected.responses for s in scenarios] == [("One.", "Two."), ("1",), ()]
    assert scenarios[0].user_responses == ("One?", "Two?")


def test_a_broken_question_is_quarantined_and_a_broken_answer_is_an_error(folder, ingested):
    """A question is one record; the answers belong to all of them."""
    files = {"question.jsonl": [question(1), {"question_id": 2}], "reference_answer_gpt-4.jsonl": []}
    counts, _ = ingested("mt_bench", folder(files))
    assert counts.reasons == {"not as published": 1}
    with pytest.raises(DataError, match=r"reference_answer_gpt-4\.jsonl:1: choices: Field required"):
        ingested("mt_bench", folder({**files, "reference_answer_gpt-4.jsonl": [{"question_id": 1}]}))


def test_every_published_question_is_a_scenario(published, ingested):
    """80 questions, 10 a category; 30 have GPT-4's answers, others notes of their own."""
    folder = published("mt_bench")
    raw = [json.loads(line) for line in (folder / "question.jsonl").read_text().splitlines()]
    answered = {
        json.loads(line)["question_id"] for line in (folder / "reference_answer_gpt-4.jsonl").read_text().splitlines()
    }
    counts, scenarios = ingested("mt_bench", folder)
    assert counts.records == counts.scenarios == len(raw) == 80
    noted = {row["question_id"] for row in raw if any(row.get("reference", ()))}
    assert sum(bool(s.expected.responses) for s in scenarios) == len(answered | noted) == 40
