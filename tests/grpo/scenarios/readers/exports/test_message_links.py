"""Messages that name the one before them: one branch is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.scenarios.guess import guess_source
from grpo.scenarios.readers.exports.message_links import OTHER_BRANCHES, shown_branch, shown_versions
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


def test_earlier_turns_stay_if_only_replies_name_a_message():
    """A second question has no predecessor, so that a branch would begin with it. Its first reply was replaced."""
    roles = ("user", "assistant", "user", "assistant", "assistant")
    messages = linked([("a", None), ("b", "a"), ("c", None), ("d", "c"), ("e", "c")])
    messages = [{**message, "role": role} for message, role in zip(messages, roles, strict=True)]
    branch, has_others = shown_branch(messages)
    assert ("".join(message["id"] for message in branch), has_others) == ("abce", True)
    tools = [{**message, "role": "tool"} if message["id"] in "de" else message for message in messages]
    branch, has_others = shown_branch(tools)
    assert ("".join(message["id"] for message in branch), has_others) == ("abcde", False)


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


def claude_code(links: list[tuple[str, str | None, str, Any]], **columns: Any) -> list[dict[str, Any]]:
    """Lines of a session of Claude Code: id, predecessor, role and content."""
    return [
        {"uuid": name, "parentUuid": parent, "sessionId": "s", "type": role, "isSidechain": False, **columns,
         "message": {"role": role, "content": content}, "timestamp": f"2026-11-20T09:00:{number:02}Z"}
        for number, (name, parent, role, content) in enumerate(links)
    ]  # fmt: skip


def read_lines(tmp_path: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The only scenario of a file of JSON lines with guessed settings."""
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    return {**record.data, "ignored": record.ignored}


ASKED, DONE, BAD = "Where is order 7?", "It is lost.", "No idea."


@pytest.mark.parametrize(
    ("links", "asked", "replied"),
    [
        ([("1", None, "user", ASKED), ("2", "1", "assistant", BAD), ("3", "1", "assistant", DONE)], [ASKED], [DONE]),
        (
            [("1", None, "user", "Where is it?"), ("2", "1", "assistant", BAD),
             ("3", None, "user", ASKED), ("4", "3", "assistant", DONE)],
            [ASKED], [DONE],
        ),
        (
            [("1", None, "user", ASKED), ("2", "1", "assistant", DONE), ("3", "2", "user", "Oh?"),
             ("4", "3", "assistant", BAD), ("5", "2", "user", "Thanks."), ("6", "5", "assistant", "Bye.")],
            [ASKED, "Thanks."], [DONE, "Bye."],
        ),
    ],
)  # fmt: skip
def test_of_rows_with_links_the_newest_version_is_read(tmp_path: Path, links: Any, asked: Any, replied: Any):
    """A reply that was generated again, an edited first question, and an edited second one with its reply."""
    chat = read_lines(tmp_path, claude_code(links))
    assert (chat["user_responses"], chat["expected"]["responses"]) == (asked, replied)
    assert OTHER_BRANCHES in chat["ignored"]


def test_results_of_parallel_calls_are_not_versions_of_each_other(tmp_path: Path):
    """Claude Code writes each call in a line, and each result after the line of its call."""
    calls = [[{"type": "tool_use", "id": f"c{k}", "name": "look_up", "input": {"order": str(k)}}] for k in (7, 8)]
    results = [[{"type": "tool_result", "tool_use_id": f"c{k}", "content": "lost"}] for k in (7, 8)]
    links = [
        ("1", None, "user", ASKED), ("2", "1", "assistant", calls[0]), ("3", "2", "assistant", calls[1]),
        ("4", "2", "user", results[0]), ("5", "3", "user", results[1]), ("6", "5", "assistant", DONE),
    ]  # fmt: skip
    chat = read_lines(tmp_path, claude_code(links))
    assert [call["arguments"] for call in chat["world"]["recorded"]] == [{"order": "7"}, {"order": "8"}]
    assert chat["expected"]["responses"] == [DONE]
    assert OTHER_BRANCHES not in chat["ignored"]


def test_lines_of_claude_code_that_are_not_said_are_left_out(tmp_path: Path):
    """A summary of the file has no session. Summaries of earlier turns and errors of the API are marked."""
    lines = [
        {"type": "summary", "summary": "Orders", "leafUuid": "2"},
        *claude_code([("1", None, "user", ASKED)]),
        *claude_code([("2", "1", "assistant", "API Error: 529")], isApiErrorMessage=True),
        *claude_code([("3", "2", "assistant", DONE)]),
        *claude_code([("4", "3", "user", "This session is being continued.")], isCompactSummary=True),
    ]
    chat = read_lines(tmp_path, lines)
    assert (chat["user_responses"], chat["expected"]["responses"]) == ([ASKED], [DONE])


def test_a_thread_with_several_speakers_after_one_row_has_no_versions():
    """All of its rows answer the first one, as in a forum. The results of calls have no speaker."""
    rows = linked([("a", None), ("b", "a"), ("c", "a"), ("d", "a")])
    assert shown_versions(rows, ["user", "assistant", "user", "assistant"]) == [True] * 4
    assert shown_versions(rows, ["user", "assistant", None, "assistant"]) == [True, False, True, True]
    assert shown_versions(rows[:1], ["user"]) == [True]


def test_a_circle_of_rows_ends():
    """Two rows that name each other, and two replies to one of them."""
    rows = linked([("a", "b"), ("b", "a"), ("c", "a"), ("d", "a")])
    assert shown_versions(rows, ["user", "user", "assistant", "assistant"]) == [True] * 4
    assert shown_versions(rows, ["user", None, "assistant", "assistant"]) == [True, True, False, True]
