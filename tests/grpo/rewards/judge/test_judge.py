from __future__ import annotations

from pathlib import Path

import pytest

from grpo.rewards.judge.judge import AnswerCache

QUESTION = {"server": "a", "rubric": "r", "request": {"messages": ["x"]}}


def test_an_answer_is_found_by_what_was_asked(tmp_path: Path):
    """By another object on the same folder too; another model, rubric or prompt is another question."""
    AnswerCache(tmp_path).put(QUESTION, "yes, ä", scenario_id="s")
    cache = AnswerCache(tmp_path)
    assert cache.get(dict(reversed(QUESTION.items()))) == "yes, ä"
    for other in ({"server": "b"}, {"rubric": "s"}, {"request": {"messages": ["y"]}}):
        assert cache.get({**QUESTION, **other}) is None


@pytest.mark.parametrize("damage", ["half", "empty", "changed", "other", "binary"])
def test_a_damaged_entry_is_ignored(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture):
    """Truncated, empty, altered, or misplaced: it is logged, and the question is sent again."""
    cache = AnswerCache(tmp_path)
    cache.put(QUESTION, "the judge's words", scenario_id="s")
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_text()
    cache.put({**QUESTION, "server": "b"}, "the judge's words", scenario_id="s")
    (other,) = set(tmp_path.rglob("*.json")) - {path}
    damaged = {
        "half": whole[: len(whole) // 2].encode(),
        "empty": b"",
        "changed": whole.replace("judge", "fudge").encode(),
        "other": other.read_bytes(),
        "binary": b"\xff\xfe\x00",
    }
    path.write_bytes(damaged[damage])
    assert cache.get(QUESTION) is None
    assert f"{path} is damaged" in caplog.text
    cache.put(QUESTION, "again", scenario_id="s")
    assert cache.get(QUESTION) == "again"
