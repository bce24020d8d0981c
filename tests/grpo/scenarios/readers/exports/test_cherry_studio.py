"""Backups of Cherry Studio: replies of several models, cleared contexts, and what is not a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import OTHER, cherry_block, cherry_studio

QUESTION = {"id": "1", "role": "user", "blocks": ["q"]}
ASKED_BLOCK = cherry_block("q", "main_text", ASKED)


def read(tmp_path: Path, document: Any) -> list[SourceRecord]:
    """The records of a backup."""
    path = tmp_path / "data.json"
    path.write_text(json.dumps(document))
    return list(read_records(ChatSource(kind="openai_messages", path=str(path))))


def reply(name: str, kind: str = "main_text", text: str = DONE, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A reply to the question, and its block."""
    return {"id": name, "role": "assistant", "askId": "1", "blocks": [name]}, cherry_block(name, kind, text, **fields)


@pytest.mark.parametrize(
    ("replies", "shown"),
    [
        ((reply("a", text=DONE), reply("b", text=OTHER)), DONE),
        ((reply("a", "error", "offline"), reply("b", text=DONE)), DONE),
    ],
)
def test_the_first_of_several_replies_is_read_if_none_is_useful(tmp_path: Path, replies: Any, shown: str):
    """Unless it has only an error. Together the replies would be one that nobody gave."""
    messages, blocks = zip(*replies, strict=True)
    (record,) = read(tmp_path, cherry_studio(QUESTION, *messages, blocks=(ASKED_BLOCK, *blocks)))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": [shown]}


def test_a_cleared_context_begins_another_chat(tmp_path: Path):
    """Because the model does not read what was before. Versions before blocks have the text in the message."""
    messages = [
        {"id": "1", "role": "user", "content": ASKED}, {"id": "2", "role": "assistant", "content": DONE, "askId": "1"},
        {"id": "3", "role": "user", "content": "", "type": "clear"},
        {"id": "4", "role": "user", "content": "Open?"},
    ]  # fmt: skip
    document = cherry_studio(*messages)
    del document["indexedDB"]["message_blocks"]
    chats = [record.data for record in read(tmp_path, document) if record.data is not None]
    assert [(chat["id"], chat["user_responses"]) for chat in chats] == [("t", [ASKED]), ("t-2", ["Open?"])]
    assert chats[0]["expected"]["responses"] == [DONE]


def test_the_result_of_a_server_of_tools_is_its_text(tmp_path: Path):
    """The block keeps the raw answer, with the name of the tool and the arguments."""
    raw = {"tool": {"name": "look_up"}, "arguments": {"order": "7"},
           "response": {"content": [{"type": "text", "text": "lost"}], "isError": False}}  # fmt: skip
    message, block = reply("a", "tool", "", toolId="mcp1", metadata={"rawMcpToolResponse": raw})
    del block["content"]
    (record,) = read(tmp_path, cherry_studio(QUESTION, message, blocks=(ASKED_BLOCK, block)))
    assert record.data is not None, record.problem
    (recorded,) = record.data["world"]["recorded"]
    assert (recorded["name"], recorded["arguments"], recorded["result"]) == ("look_up", {"order": "7"}, "lost")


@pytest.mark.parametrize(
    ("message", "block", "problem"),
    [
        (*reply("a", "image", "x"), "content is not text: block image in message 1"),
        ({**reply("a")[0], "blocks": ["gone"]}, reply("a")[1], "block gone of message 1 is not in the file"),
        ({**reply("a")[0], "files": ["a.png"]}, reply("a")[1], "files or tools of message 1 cannot be read"),
    ],
)
def test_what_is_not_a_text_or_a_call_quarantines_the_chat(tmp_path: Path, message: Any, block: Any, problem: str):
    """With the number of the message."""
    (record,) = read(tmp_path, cherry_studio(QUESTION, message, blocks=(ASKED_BLOCK, block)))
    assert (record.problem or "").startswith(problem)


def test_a_reply_that_was_paused_is_no_reference(tmp_path: Path):
    """The turn stays."""
    message, block = reply("a")
    (record,) = read(tmp_path, cherry_studio(QUESTION, {**message, "status": "paused"}, blocks=(ASKED_BLOCK, block)))
    assert record.data is not None, record.problem
    assert record.data["expected"] == {"responses": []}
