"""Files of logged objects: a list of messages is one chat, and a list of records that look like messages is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.sources import read_records

ASKED, ANSWERED = "Where is order 7?", "It is lost."
ALPACA = {"instruction": ASKED, "output": ANSWERED}
RECORDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "IFEval": ({"kind": "prompt_completion"}, {"prompt": ASKED, "completion": ANSWERED, "kwargs": [{}], "key": 1}),
    **{
        f"a task of type {name}": ({"kind": "alpaca"}, {"type": name, **ALPACA})
        for name in ("human", "tool", "system", "reasoning", "function_call", "phone_call")
    },
    "a persona": (
        {"kind": "alpaca", "names": {"instruction": "content"}},
        {"role": "user", "content": ASKED, "output": ANSWERED},
    ),
    "a role next to messages": (
        {"kind": "openai_messages"},
        {"role": "user", "content": "x", "messages": [{"role": "user", "content": ASKED}]},
    ),
}


@pytest.mark.parametrize(("settings", "record"), RECORDS.values(), ids=RECORDS)
def test_records_that_look_like_messages_stay_records(
    tmp_path: Path, settings: dict[str, Any], record: dict[str, Any]
) -> None:
    """A column `type`, `role` or `kwargs` does not make one chat of a data set, nor a source that cannot be read."""
    path = tmp_path / "a.json"
    other = {**record, **({"type": "coding"} if record.get("type") == "reasoning" else {})}
    path.write_text(json.dumps([record, other]))
    guessed = [] if "names" in settings else [guess_source(path)]
    for source in (ChatSource(path=str(path), **settings), *guessed):
        first, second = read_records(source)
        assert first.data is not None, first.problem
        assert second.data is not None, second.problem
        assert first.data["user_responses"] == second.data["user_responses"] == [ASKED]


@pytest.mark.parametrize("column", ["episode_id", "dialogue_no", "sample"])
def test_messages_of_several_conversations_are_not_one_chat(tmp_path: Path, column: str) -> None:
    """A column that repeats at both speakers tells them apart, whatever its name is. A guess asks for its meaning."""
    path = tmp_path / "a.json"
    roles = ("user", "assistant", "user", "assistant")
    rows = [{column: c, "turn": k, "role": role, "content": ASKED} for c in (1, 2) for k, role in enumerate(roles)]
    path.write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"Name that column in messages\.group_by"):
        guess_source(path)


def test_columns_that_every_chat_has_do_not_part_it(tmp_path: Path) -> None:
    """Names and models of speakers, counts of tokens, and times that a question and its answer share."""
    roles = [("user", "Ann", 3, "09:00"), ("assistant", "Bot", 5, "09:00"), ("user", "Ann", 5, "09:01")]
    rows = [
        {"role": role, "name": name, "tokens": tokens, "time": f"2026-11-20 {time}", "content": ASKED}
        for role, name, tokens, time in roles
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [ASKED, ASKED]


@pytest.mark.parametrize(
    "second",
    [
        {"type": "ai", "text": ANSWERED},
        {"type": "tool_call", "text": '{"name": "look_up", "arguments": {}}'},
        {"type": "staff", "text": "x", "private": True},
    ],
)
def test_the_key_of_the_speaker_that_settings_name_has_its_own_words(tmp_path: Path, second: dict[str, Any]) -> None:
    """They are not the types of another API, and an ignored message may be private."""
    turns = [{"type": "human", "text": ASKED}, second, {"type": "person", "text": "Thanks."}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"messages": turns}]))
    settings: dict[str, Any] = {"names": {"role": "type", "content": "text"}}
    tags = {"human": "user", "person": "user", "ai": "ignore", "tool_call": "ignore", "staff": "ignore"}
    (record,) = read_records(ChatSource(kind="sharegpt", path=str(path), tags=tags, **settings))
    assert record.data is not None, record.problem
    assert record.data["expected"]["responses"] == []
