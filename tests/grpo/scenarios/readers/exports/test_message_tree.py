"""Chats that are kept as trees, as in ChatGPT's export of an account's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.exports.message_tree import branch_of
from grpo.scenarios.sources import read_records


def _node(parent: str | None, role: str = "", text: str = "", **message: Any) -> dict[str, Any]:
    """A node of the tree; the root has no message."""
    content = {"content_type": "text", "parts": [text]}
    given = {"author": {"role": role}, "content": content, "weight": 1.0, **message} if role else None
    return {"parent": parent, "children": [], "message": given}


def _chat() -> dict[str, Any]:
    """A question, two replies to it, of which the second was kept, and a question after that."""
    nodes = {
        "root": _node(None),
        "empty": _node("root", "system"),
        "hidden": _node("empty", "user", "About me", metadata={"is_visually_hidden_from_conversation": True}),
        "a": _node("hidden", "user", "Where is my parcel?"),
        "first": _node("a", "assistant", "I do not know."),
        "second": _node("a", "assistant", "It was lost."),
        "b": _node("second", "user", "Send another one."),
    }
    return {"id": "x1", "title": "Parcel", "mapping": nodes, "current_node": "b"}


def test_the_branch_that_the_user_saw_last_is_read(tmp_path: Path):
    """The reply that was generated again is in the place of the first one."""
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([_chat()]))
    [record] = read_records(guess_source(path))
    assert record.problem is None
    assert record.data is not None
    assert record.data["id"] == "x1"
    assert list(record.data["user_responses"]) == ["Where is my parcel?", "Send another one."]
    assert record.data["expected"]["responses"][0] == "It was lost."


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"current_node": "gone"}, "broken tree: no node gone in mapping"),
        ({"mapping": {"b": _node("b", "user", "Hi.")}}, "over-long chat"),
        ({"mapping": {"b": _node(None, "user", content={"content_type": "code"})}}, "content is not text: code"),
    ],
)
def test_a_tree_that_cannot_be_read_has_its_reason(changes: dict[str, Any], reason: str):
    """An end that is not there, a circle, and a message that is not a text."""
    with pytest.raises(ValueError, match=reason):
        branch_of({**_chat(), **changes})


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (
            {"mapping": {"1": {"parent": None, "message": {"fragments": [{"type": ["IMAGE"], "content": "x"}]}}}},
            'a fragment ["IMAGE"] cannot be read. Only texts and thoughts are read',
        ),
        (
            {"message_tree_id": "m", "prompt": {"role": "prompter", "text": "x", "replies": [
                {"role": "assistant", "text": "y", "replies": True}]}},
            "broken tree: replies is not a list: bool",
        ),
    ],
)  # fmt: skip
def test_a_tree_with_something_else_in_it_is_quarantined(tmp_path: Path, record: dict[str, Any], problem: str) -> None:
    """With the part that is not as it should be."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps([record]))
    (read,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    assert read.problem == problem


def _fragments(parent: str, kind: str, text: str, time: str | None) -> dict[str, Any]:
    """A node of DeepSeek's export."""
    return {"parent": parent, "children": [], "message": {
        "files": [], "inserted_at": time, "fragments": [{"type": kind, "content": text}]}}  # fmt: skip


@pytest.mark.parametrize(("time", "reply"), [("2026-01-01T09:00:0{}.5+08:00", "Lost."), (None, "No.")])
def test_the_newest_reply_of_deepseek_is_found_by_its_time(tmp_path: Path, time: str | None, reply: str):
    """Keys may be in the order of digits. A question may have the time of its reply. Without times the last is read."""
    nodes = {
        "root": {"parent": None, "children": [], "message": None},
        "1": _fragments("root", "REQUEST", "Where is it?", time and time.format(9)),
        "10": _fragments("1", "RESPONSE", "Lost.", time and time.format(9)),
        "2": _fragments("1", "RESPONSE", "No.", time and time.format(2)),
    }
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"id": "c", "mapping": nodes}]))
    [record] = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert record.data["expected"]["responses"] == [reply]


@pytest.mark.parametrize(
    "fragment", [{"type": "SEARCH", "results": [{"url": "x"}]}, {"type": "FILE", "files": [{"file_name": "a.png"}]}]
)
def test_a_search_and_a_file_of_deepseek_quarantine_the_chat(tmp_path: Path, fragment: dict[str, Any]):
    """The model read what the export does not have."""
    nodes = {"1": _fragments("root", "REQUEST", "Where is it?", None), "root": {"parent": None, "message": None}}
    nodes["1"]["message"]["fragments"].insert(0, fragment)
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"id": "c", "mapping": dict(reversed(nodes.items()))}]))
    [record] = read_records(ChatSource(kind="openai_messages", path=str(path)))
    assert record.problem == f"a fragment {fragment['type']} cannot be read. Only texts and thoughts are read"


def test_the_users_own_instructions_are_the_system_prompt(tmp_path: Path):
    """ChatGPT hides the message from the page, and reads it before each chat."""
    chat = _chat()
    own = {"content_type": "user_editable_context", "user_profile": "I run a shop.", "user_instructions": "Be kind."}
    hidden = {"is_visually_hidden_from_conversation": True, "is_user_system_message": True}
    chat["mapping"]["hidden"]["message"] |= {"content": own, "metadata": hidden}
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([chat]))
    [record] = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert record.data["context"] == "I run a shop.\n\nBe kind."
