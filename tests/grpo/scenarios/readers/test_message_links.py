"""Messages that name the one before them: one branch is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.message_links import OTHER_BRANCHES, shown_branch
from grpo.scenarios.sources import read_records

LINKS = [("a", None), ("b", "a"), ("c", "a"), ("d", "b")]
"""Ids of messages and of those before them: b and c answer a, and d answers b."""


def linked(links: list[tuple[str, Any]], id_key: str = "id", parent_key: str = "parentId") -> list[dict[str, Any]]:
    return [{id_key: name, parent_key: parent} for name, parent in links]


@pytest.mark.parametrize(("end", "names"), [(None, "abd"), ("c", "ac"), ("b", "ab"), ("x", "abd"), (["c"], "abd")])
@pytest.mark.parametrize(
    ("id_key", "parent_key"), [("id", "parentId"), ("uuid", "parent_message_uuid"), ("messageId", "parentMessageId")]
)
def test_the_branch_that_ends_at_a_message_is_read(end: Any, names: str, id_key: str, parent_key: str):
    """Or at the newest message, d, if the end is not given or is no message."""
    branch, has_others = shown_branch(linked(LINKS, id_key, parent_key), end)
    assert ("".join(message[id_key] for message in branch), has_others) == (names, True)


def test_the_last_of_all_messages_before_one_is_its_predecessor():
    """HuggingChat writes the ids of all of them, and of the answers to a message."""
    messages = [{"id": "a", "ancestors": [], "children": ["b", "c"]}, {"id": "b", "ancestors": ["a"]}]
    branch, has_others = shown_branch([*messages, {"id": "c", "ancestors": ["a"]}])
    assert ([message["id"] for message in branch], has_others) == (["a", "c"], True)
    assert "children" not in branch[0]


@pytest.mark.parametrize(("end", "root", "names"), [("d", None, "cd"), (None, "0", "cd"), (None, None, "abcd")])
def test_a_first_question_that_was_edited_is_a_branch(end: Any, root: Any, names: str):
    """If the end is known, or if both questions name the same root. Otherwise they may be of one thread."""
    branch, _ = shown_branch(linked([("a", root), ("b", "a"), ("c", root), ("d", "c")]), end)
    assert "".join(message["id"] for message in branch) == names


@pytest.mark.parametrize(
    "messages",
    [
        linked([("a", None), ("b", "a"), ("c", "b")]),
        linked([("a", None), ("b", "x"), ("c", "x")]),
        linked([("a", None), ("a", "a"), ("c", "a")]),
        [{"role": "user", "content": "Hi."}],
        [],
        "text",
    ],
)
def test_messages_without_branches_stay_as_they_are(messages: Any):
    """A chain, links to messages that are not there, ids that repeat, and messages without links."""
    assert shown_branch(messages) == (messages, False)


def test_a_message_that_comes_before_itself_is_an_error():
    """The tree would have no beginning."""
    with pytest.raises(ValueError, match="broken tree: message c comes before itself"):
        shown_branch(linked([("a", "c"), ("b", "a"), ("c", "a")]), "c")


def test_of_claudes_export_the_edited_question_is_read(tmp_path: Path):
    """Both questions and their replies are in its list."""
    links = [("1", None, "human", "Where is it?"), ("2", "1", "assistant", "What?"),
             ("3", None, "human", "Where is order 7?"), ("4", "3", "assistant", "It is lost."),
             ("5", "3", "assistant", "Lost.")]  # fmt: skip
    messages = [
        {"uuid": name, "parent_message_uuid": parent, "sender": sender, "text": text, "attachments": [], "files": []}
        for name, parent, sender, text in links
    ]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([{"uuid": "c", "name": "Orders", "chat_messages": messages}]))
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["Where is order 7?"], ["Lost."])
    assert OTHER_BRANCHES in record.ignored
