"""Chats of Agnai and RisuAI: who speaks, and what the model does not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import AGNAI, RISU


def read(tmp_path: Path, document: Any) -> SourceRecord:
    """The record of a file."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


def risu(*messages: Any) -> dict[str, Any]:
    return {"type": "risuChat", "ver": 1, "data": {"message": messages, "note": ""}}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"messages": [{**AGNAI[1], "userId": None}]}, "message 0 has no userId and no characterId, or both"),
        ({"messages": [{**AGNAI[1], "characterId": "x"}]}, "message 0 has no userId and no characterId, or both"),
        ({"messages": [{**AGNAI[1], "extras": ["a.png"]}]}, "extras of message 0 cannot be read"),
        ({"messages": [*AGNAI, {**AGNAI[3], "handle": "Cook"}]}, "several speakers of one role: assistant Desk"),
        (risu({"role": "narrator", "data": "x"}), "unknown role: narrator in message 0"),
        ({"type": "risuChat", "data": {"message": "x"}}, "message is not a list of objects"),
    ],
)
def test_a_message_of_an_unknown_speaker_quarantines_the_chat(tmp_path: Path, document: Any, problem: str):
    """And so do pictures and a second character."""
    assert (read(tmp_path, document).problem or "").startswith(problem)


def test_what_stands_before_a_cut_was_not_read_by_the_model(tmp_path: Path):
    """RisuAI disables one message, or all before it as well."""
    cut = {"role": "char", "data": "a note", "disabled": "allBefore"}
    comment = {"role": "char", "data": "a note", "isComment": True}
    chat = risu({"role": "user", "data": "Hello."}, cut, RISU[1], comment, RISU[3])
    chat["data"]["localLore"] = [{"key": "order", "content": "Orders have numbers."}]
    record = read(tmp_path, chat)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == ([ASKED], [DONE])
    assert "message: a message that the model did not read" in record.ignored
    assert "record.localLore: texts that the model reads if a message has their words" in record.ignored


def test_a_message_with_a_speaker_is_not_taken_for_a_question(tmp_path: Path):
    """Otherwise each reply of the agent would be a question of the user."""
    path = tmp_path / "a.json"
    rows = [{"role": "x", "data": "Hello."}, {"role": "user", "data": ASKED}, {"role": "x", "data": DONE}]
    path.write_text(json.dumps({"story": {"rows": rows}}))
    with pytest.raises(DataError, match="has role, data, and none of these keys or columns is known"):
        guess_source(path)
