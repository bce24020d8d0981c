from __future__ import annotations

import json

import pytest

from grpo.errors import Unscored
from grpo.rewards.judge.parsing import MalformedVerdict, Verdict, parse_verdicts


def _item(label: object = "AB", score: object = 0.5, reason: object = "ok") -> dict[str, object]:
    return {"label": label, "score": score, "reason": reason}


def _answer(*items: object) -> str:
    return json.dumps({"scores": items})


BOTH = _answer(_item(), _item("CD", 1))


def test_one_score_and_one_reason_for_each_label_are_read():
    """In any order, with whole numbers, and white space around."""
    verdicts = parse_verdicts(f"\n {BOTH} ", ["CD", "AB"])
    assert verdicts == {"AB": Verdict(score=0.5, reason="ok"), "CD": Verdict(score=1.0, reason="ok")}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "not one JSON object"),
        (f"Here you are: {BOTH}", "not one JSON object"),
        (f"```json\n{BOTH}\n```", "not one JSON object"),
        (f"{BOTH} I hope this helps.", "text after the value"),
        (BOTH[: len(BOTH) // 2], "not one JSON object"),
        ("[" * 100_000, "not one JSON object"),
        ("[]", "expected"),
        ('{"scores": {}}', "expected"),
        ('{"AB": 0.5, "CD": 1}', "expected"),
        ('{"scores": [], "note": "x"}', "expected"),
        ('{"scores": [], "scores": []}', "the key 'scores' is given twice"),
        (_answer(_item()), "no score for CD"),
        (_answer(), "no score for AB, CD"),
        (_answer(_item(), _item(), _item("CD")), "label AB is scored twice"),
        (_answer(_item(), _item("CD"), _item("EF")), "label 'EF' is unknown; the labels are AB, CD"),
        (_answer(_item(), _item("cd")), "label 'cd' is unknown"),
        (_answer(_item(), _item(["CD"])), "is not a text"),
        (_answer(_item(), "CD"), "expected label, score and reason, got 'CD'"),
        (_answer(_item(), {"label": "CD", "score": 1}), "expected label, score and reason"),
        (_answer(_item(), {**_item("CD"), "rank": 1}), "expected label, score and reason"),
        (_answer(_item(), _item("CD", float("nan"))), "NaN is not a number"),
        (_answer(_item(), _item("CD", float("inf"))), "Infinity is not a number"),
        (BOTH.replace('"score": 1', '"score": 1e999'), "the number 1e999 is too large"),
        (_answer(_item(), _item("CD", 1.01)), r"score 1\.01 of 'CD' is not a number from 0 to 1"),
        (_answer(_item(), _item("CD", -0.1)), r"score -0\.1 of 'CD'"),
        (_answer(_item(), _item("CD", "1")), "score '1' of 'CD'"),
        (_answer(_item(), _item("CD", True)), "score True of 'CD'"),
        (_answer(_item(), _item("CD", None)), "score None of 'CD'"),
        (_answer(_item(), _item("CD", 1, " ")), "reason ' ' of 'CD' is not a text"),
        (_answer(_item(), _item("CD", 1, None)), "reason None of 'CD' is not a text"),
        (_answer(_item(), _item("CD", 1, "x" * 601)), "is not a text of 1 to 600"),
    ],
)
def test_any_other_answer_is_malformed(answer: str, problem: str):
    """A typed error that names the problem; no partial answer is used."""
    with pytest.raises(MalformedVerdict, match=problem) as caught:
        parse_verdicts(answer, ["AB", "CD"])
    assert isinstance(caught.value, Unscored)
    assert len(str(caught.value)) < 300
