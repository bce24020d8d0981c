"""Tables with one row per message, or per message and reply: places in objects, notes, and one conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.chats import MessageRows
from grpo.config.scenarios import FileSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

ASKED, ANSWERED = "Where is order 7?", "It is due today."


def read(path: Path, rows: list[dict[str, Any]], **settings: Any) -> list[SourceRecord]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return list(read_records(FileSource(kind="jsonl", path=str(path), messages=MessageRows(**settings))))


def turns(record: SourceRecord) -> tuple[list[str], list[str]]:
    assert record.data is not None, record.problem
    return record.data["user_responses"], record.data.get("expected", {}).get("responses", [])


def test_a_row_with_a_message_and_its_reply_is_two_turns_of_its_conversation(tmp_path: Path) -> None:
    """Dify and other builders of bots log like this. In order of time, and not as three chats of one turn."""
    rows = [
        {"chat": "a", "query": "Thanks.", "answer": None, "at": 2},
        {"chat": "b", "query": "Hi.", "answer": "Hello.", "at": 1},
        {"chat": "a", "query": ASKED, "answer": ANSWERED, "at": 1},
    ]
    first, second = read(tmp_path / "a.jsonl", rows, group_by="chat", text="query", reply="answer", order="at")
    assert turns(first) == ([ASKED, "Thanks."], [ANSWERED])
    assert turns(second) == (["Hi."], ["Hello."])


def test_a_column_may_be_a_place_in_an_object(tmp_path: Path) -> None:
    """Also in an object that is JSON in a text, and without a column of the conversation."""
    rows = [
        {"message": json.dumps({"type": "human", "data": {"content": ASKED}})},
        {"message": {"type": "ai", "data": {"content": ANSWERED}}},
    ]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="message.type", text="message.data.content")
    assert turns(record) == ([ASKED], [ANSWERED])


def test_parts_of_a_message_keep_their_calls(tmp_path: Path) -> None:
    """A list of parts is a message, as AI SDK stores it, and not its JSON as a text."""
    part = {"type": "tool-look_up", "toolCallId": "1", "state": "output-available", "input": {"n": 7}, "output": "due"}
    rows = [
        {"role": "user", "parts": [{"type": "text", "text": ASKED}]},
        {"role": "assistant", "parts": [part, {"type": "text", "text": ANSWERED}]},
    ]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="parts")
    assert turns(record) == ([ASKED], [ANSWERED])
    assert record.data is not None
    assert record.data["world"]["recorded"][0]["result"] == "due"


@pytest.mark.parametrize("text", ["[2, 3, 5]", '{"order": 7}', '[{"order": 7}]'])
def test_a_text_that_is_json_stays_a_text(tmp_path: Path, text: str) -> None:
    rows = [{"role": "user", "text": ASKED}, {"role": "bot", "text": text}]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert turns(record) == ([ASKED], [text])


@pytest.mark.parametrize("text", [{"type": "image"}, [{"type": "image", "url": "x"}]])
def test_a_text_that_is_an_object_is_refused(tmp_path: Path, text: Any) -> None:
    """It would become a text that no speaker has written."""
    (record,) = read(tmp_path / "a.jsonl", [{"role": "user", "text": text}], speaker="role", text="text")
    assert "is not text" in (record.problem or "") or "is not a text" in (record.problem or "")


def test_rows_that_are_left_out_need_no_other_column(tmp_path: Path) -> None:
    """Events of a bot between its messages have neither a text nor a time."""
    rows: list[dict[str, Any]] = [
        {"chat": "a", "kind": "message", "event": "user", "text": ASKED, "at": 1},
        {"chat": "a", "kind": "message", "event": "slot"},
        {"chat": "a", "kind": "note", "event": "bot"},
        {"chat": "a", "kind": "message", "event": "bot", "text": ANSWERED, "at": 2},
    ]
    where, tags = {"kind": ["message"]}, {"slot": "ignore"}
    settings = {"group_by": "chat", "speaker": "event", "text": "text", "order": "at", "where": where, "tags": tags}
    (record,) = read(tmp_path / "a.jsonl", rows, **settings)
    assert turns(record) == ([ASKED], [ANSWERED])
    assert sorted(record.ignored) == ["row: kind is not one of those in where", "row: the speaker slot is ignored"]


def test_rows_with_a_value_of_without_are_left_out(tmp_path: Path) -> None:
    """Every other value is read, also one that a look at the first rows has not seen, and also none."""
    rows = [
        {"chat": "a", "role": "user", "text": ASKED, "type": "chat"},
        {"chat": "a", "role": "bot", "text": "He is angry.", "type": "note"},
        {"chat": "a", "role": "bot", "text": ANSWERED, "type": None},
        {"chat": "a", "role": "user", "text": "Thanks."},
    ]
    settings: dict[str, Any] = {"group_by": "chat", "speaker": "role", "text": "text", "without": {"type": ["note"]}}
    (record,) = read(tmp_path / "a.jsonl", rows, **settings)
    assert turns(record) == ([ASKED, "Thanks."], [ANSWERED])
    assert record.ignored == ("row: type is one of those in without",)


def test_a_conversation_with_a_row_that_cannot_be_read_is_quarantined(tmp_path: Path) -> None:
    """Without the row, two turns of the user would follow each other. Slack writes no user for a bot."""
    rows = [
        {"thread": "a", "user": "U1", "text": ASKED},
        {"thread": "a", "bot_id": "B1", "text": ANSWERED},
        {"thread": "b", "user": "U1", "text": "Hi."},
    ]
    settings: dict[str, Any] = {"group_by": "thread", "speaker": "user", "text": "text", "tags": {"U1": "user"}}
    broken, whole = read(tmp_path / "a.jsonl", rows, **settings)
    assert (broken.problem or "").startswith("no column user: the record has thread, bot_id, text")
    assert turns(whole)[0] == ["Hi."]
    settings["tags"]["null"] = "assistant"
    first, _ = read(tmp_path / "a.jsonl", rows, **settings)
    assert turns(first) == ([ASKED], [ANSWERED])


@pytest.mark.parametrize(
    "settings",
    [{"text": "a"}, {"text": "a", "speaker": "b", "reply": "c"}, {"text": "a", "reply": "b", "tags": {"c": "user"}}],
)
def test_a_row_is_one_message_or_a_message_with_its_reply(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"give speaker if|tags are values of speaker"):
        MessageRows(**settings)


@pytest.mark.parametrize("speaker", ["", None])
def test_a_row_without_a_speaker_has_the_tag_null(tmp_path: Path, speaker: str | None) -> None:
    """An empty cell of CSV is the null of JSON. The tag may ignore it, and without a tag the reason names it."""
    rows = [{"who": "user", "text": ASKED}, {"who": speaker, "text": "joined"}, {"who": "bot", "text": ANSWERED}]
    settings: dict[str, Any] = {"speaker": "who", "text": "text"}
    (broken,) = read(tmp_path / "a.jsonl", rows, **settings)
    assert (broken.problem or "").startswith("unknown speaker: null in column who")
    (record,) = read(tmp_path / "a.jsonl", rows, **settings, tags={"null": "ignore"})
    assert turns(record) == ([ASKED], [ANSWERED])
    assert record.ignored == ("row: the speaker null is ignored",)


@pytest.mark.parametrize(
    ("cell", "is_read"), [("p.jpg", False), (["a.pdf"], False), ("", True), (0, True), (None, True)]
)
def test_a_row_with_more_than_a_text_quarantines_its_conversation(tmp_path: Path, cell: Any, is_read: bool) -> None:
    """A picture that the user sends would be an empty turn, as Telegram exports it. A row that is left out may have
    one."""
    rows = [
        {"who": "user", "text": "", "Photo": cell},
        {"who": "bot", "text": ANSWERED},
        {"who": "user", "text": "Hi."},
    ]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="who", text="text")
    assert (record.problem is None) == is_read
    assert is_read or (record.problem or "").startswith("content other than text is not read: column Photo")
    (left,) = read(tmp_path / "a.jsonl", rows, speaker="who", text="text", without={"text": [""]})
    assert turns(left)[0] == ["Hi."]


@pytest.mark.parametrize(
    ("column", "place"),
    [
        ({"tool_calls": [{"id": "c1"}]}, "tool_calls"),
        ({"metadata": {"tool_calls": [{"tool": {"id": "c1"}}]}}, "metadata.tool_calls"),
        ({"tools": '{"toolResults": {"c1": "lost"}}'}, "tools.toolResults"),
    ],
)
def test_calls_in_another_column_are_not_left_out(tmp_path: Path, column: dict[str, Any], place: str) -> None:
    """Jan keeps them in the metadata of a message. Without them the reply would come from nothing."""
    rows: list[dict[str, Any]] = [{"role": "user", "text": ASKED}, {"role": "bot", "text": ANSWERED, **column}]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert (record.problem or "").startswith(f"column {place} has calls or results of tools")
    rows[1] = {"role": "bot", "text": ANSWERED, "metadata": {"tool_calls": []}, "tool_calls": []}
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert turns(record) == ([ASKED], [ANSWERED])


def test_the_conversations_beside_an_unreadable_row_are_quarantined(tmp_path: Path) -> None:
    """The row may be one of their messages. Other conversations are read."""
    lines = [
        json.dumps({"chat": chat, "role": role, "text": f"{chat} {role}"})
        for chat in ("a", "b", "c", "d")
        for role in ("user", "assistant")
    ]
    lines.insert(4, '{"chat": "b", "role": "user", "text": "cut')
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    settings = MessageRows(group_by="chat", speaker="role", text="text")
    records = list(read_records(FileSource(kind="jsonl", path=str(path), messages=settings)))
    broken = [record for record in records if record.data is None]
    assert (broken[0].line, (broken[0].problem or "").split(":")[0]) == (5, "broken JSON")
    assert [record.problem for record in broken[1:]] == ["a neighbouring row cannot be read: line 5"] * 2
    assert [turns(record)[0] for record in records if record.data is not None] == [["a user"], ["d user"]]


def _said(*times: Any, **more: list[Any]) -> list[dict[str, Any]]:
    """Messages 3, 2, 1 of one conversation, the newest first."""
    roles = ("user", "assistant", "user")
    rows = [{"role": role, "text": str(3 - k), "at": at} for k, (role, at) in enumerate(zip(roles, times, strict=True))]
    return [row | {name: cells[k] for name, cells in more.items()} for k, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        (_said("10:03", "10:02", "10:01"), "at"),
        (_said("1:01 PM", "12:02 p.m.", "11:59:59 am"), "at"),
        (_said("09:00", "23:00", "22:00", day=["2026-01-02", "2026-01-01", "2026-01-01"]), ["day", "at"]),
        (_said("10:02", "10:02", "10:01"), "at"),  # the table falls, so that rows of the same time fall as well
        (_said("10:01", "10:01", "10:01", n=[3, 2, 1]), ["at", "n"]),
    ],
    ids=["time", "half days", "date and time", "a table that falls", "number"],
)
def test_messages_are_ordered_by_their_columns(tmp_path: Path, rows: list[dict[str, Any]], order: Any) -> None:
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text", order=order)
    assert turns(record) == (["1", "3"], ["2"])


def test_rows_of_the_same_time_keep_the_order_of_a_table_that_rises(tmp_path: Path) -> None:
    rows = [{"role": role, "text": role, "at": at} for role, at in (("user", 1), ("bot", 2), ("user", 2), ("bot", 2))]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text", order="at")
    assert turns(record) == (["user", "user"], ["bot", "bot"])


def test_the_same_message_again_is_read_once(tmp_path: Path) -> None:
    """By its id. Without one, somebody may have said the same again."""
    rows = [
        {"role": "user", "text": "Hi.", "message_id": "1"},
        {"role": "user", "text": "Hi.", "message_id": "1"},
        {"role": "bot", "text": "Hello.", "message_id": "2"},
        {"role": "bot", "text": "Hello.", "message_id": "3"},
    ]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert turns(record) == (["Hi."], ["Hello.\nHello."])
    assert list(record.ignored) == ["row: the same message again"]
    (record,) = read(tmp_path / "a.jsonl", [row | {"message_id": None} for row in rows], speaker="role", text="text")
    assert turns(record) == (["Hi.\nHi."], ["Hello.\nHello."])


def test_an_id_of_different_messages_is_not_their_id(tmp_path: Path) -> None:
    """All rows of a concert have its id, and the agent asks twice."""
    rows = [{"role": role, "text": text, "event_id": 5} for role, text in
            (("user", "Hello?"), ("bot", "Which seat?"), ("user", "Row 3"), ("bot", "Which seat?"))]  # fmt: skip
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert turns(record) == (["Hello?", "Row 3"], ["Which seat?", "Which seat?"])


def test_times_of_day_do_not_sort_a_conversation_that_goes_on_after_midnight(tmp_path: Path) -> None:
    rows = [
        {"role": role, "text": role, "at": at} for role, at in (("user", "23:58"), ("bot", "23:59"), ("user", "00:01"))
    ]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text", order="at")
    assert turns(record) == (["user", "user"], ["bot"])


def test_a_printed_list_that_was_said_stays_a_text(tmp_path: Path) -> None:
    said = "[{'type': 'error', 'id': 4}]"
    rows = [{"role": "user", "text": "What is it?"}, {"role": "bot", "text": said}]
    (record,) = read(tmp_path / "a.jsonl", rows, speaker="role", text="text")
    assert turns(record) == (["What is it?"], [said])


@pytest.mark.parametrize("text", ["[]", "[ ]"])
def test_brackets_that_somebody_wrote_are_a_text(tmp_path: Path, text: str) -> None:
    rows = [{"chat": "a", "who": "user", "text": text}, {"chat": "a", "who": "bot", "text": "Empty?"}]
    (record,) = read(tmp_path / "a.jsonl", rows, group_by="chat", speaker="who", text="text")
    assert turns(record) == ([text], ["Empty?"])
