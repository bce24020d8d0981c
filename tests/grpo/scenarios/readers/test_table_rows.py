"""Chats in the rows of tables, and tables of one row for each message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather
from pydantic import TypeAdapter, ValidationError

from grpo.config.scenarios import Source
from grpo.errors import DataError
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records

CALL = {"type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}, "id": "c"}
CHAT = [
    {"role": "user", "content": "Where is order 7?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "lost", "tool_call_id": "c"},
    {"role": "assistant", "content": "It is lost."},
]
ROWS = [{"id": "a", "dialog": CHAT, "topic": "delivery"}, {"id": "b", "dialog": CHAT[:1], "topic": "other"}]


def records(path: Path, kind: str, **settings: Any) -> list[SourceRecord]:
    """Records of a source of this file or folder."""
    source = TypeAdapter(Source).validate_python({"kind": kind, "path": str(path), **settings})
    return list(read_records(source))


def write(tmp_path: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    """The rows in this format."""
    path, table = tmp_path / f"chats.{kind}", pa.Table.from_pylist(rows)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif kind == "feather":
        feather.write_feather(table, str(path), compression="zstd")
    elif kind == "huggingface":
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(path)
    elif kind == "csv":
        texts = [{**row, "dialog": json.dumps(row["dialog"])} for row in rows]
        table = pa.Table.from_pylist(texts)
        csv.write_csv(table, path)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "huggingface", "csv", "json", "jsonl"])
def test_chats_in_a_column_are_read_in_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    """Lists of structs, in which absent fields are null, or JSON in a text; another column is the category."""
    path = write(tmp_path, kind, ROWS)
    settings = {"chat": {"column": "dialog"}, "columns": {"metadata.category": "topic"}}
    first, second = records(path, "arrow" if kind == "feather" else kind, **settings)
    assert first.data is not None, first.problem
    assert (first.data["id"], first.data["metadata"]["category"]) == ("a", "delivery")
    assert first.data["world"]["recorded"][0]["result"] == "lost"
    assert first.data["expected"]["responses"] == ["It is lost."]
    assert second.data is not None
    assert second.data["user_responses"] == ["Where is order 7?"]


def test_alpaca_in_a_table_is_read(tmp_path: Path) -> None:
    """Columns of other names by `names`; a column that is not there is an error that lists those that are."""
    path = write(tmp_path, "parquet", [{"q": "Why?", "output": "So."}])
    (read,) = records(path, "parquet", chat={"kind": "alpaca", "names": {"instruction": "q"}})
    assert read.data is not None
    assert read.data["user_responses"] == ["Why?"]
    with pytest.raises(DataError, match=r"has no column instruction\. It has q, output"):
        records(path, "parquet", chat={"kind": "alpaca"})


def test_a_table_read_as_json_lines_says_what_it_is(tmp_path: Path) -> None:
    """Parquet, Arrow, gzip and workbooks under the kinds of texts."""
    path = write(tmp_path, "parquet", ROWS)
    for kind in ("openai_messages", "jsonl", "json"):
        with pytest.raises(DataError, match=r"but Parquet\. Read it with kind parquet"):
            records(path, kind)


def test_a_row_is_a_chat_or_a_message() -> None:
    """Both settings at once, and columns for what the chat gives, are refused."""
    rows = {"group_by": "t", "speaker": "s", "text": "x"}
    for settings, reason in (
        ({"chat": {}, "messages": rows}, "a row is either a chat or a message"),
        ({"messages": rows, "columns": {"user_responses": "x"}}, "columns has user_responses, which the chat gives"),
    ):
        with pytest.raises(ValidationError, match=reason):
            TypeAdapter(Source).validate_python({"kind": "csv", "path": "x", **settings})


DESK = """ticket,author,created,public,body,topic
17,agent,2026-11-20T10:02:00+01:00,true,It was due yesterday.,
18,end-user,2026-11-20T09:00:00Z,true,Do you have lamps?,stock
17,end-user,2026-11-20T09:00:00Z,true,Where is my parcel?,delivery
17,agent,2026-11-20T09:01:00Z,false,He is angry.,
17,system,2026-11-20T09:03:00Z,true,Assigned to Ann.,
17,end-user,2026-11-20T09:04:00Z,true,Thanks.,
18,agent,2026-11-20T09:05:00Z,true,Twelve.,
"""
MESSAGES = {
    "group_by": "ticket",
    "speaker": "author",
    "text": "body",
    "order": "created",
    "where": {"public": ["true"]},
    "tags": {"system": "ignore"},
}


def test_one_row_a_message_is_a_chat(tmp_path: Path) -> None:
    """In the order of the times, whose offsets differ: 10:02 in UTC+1 is 09:02. Notes and events are counted."""
    path = tmp_path / "desk.csv"
    path.write_text(DESK)
    parcel, lamps = records(path, "csv", messages=MESSAGES, columns={"metadata.category": "topic"})
    assert parcel.data is not None
    assert lamps.data is not None
    assert (parcel.line, parcel.data["id"], parcel.data["metadata"]["category"]) == (2, "17", "delivery")
    assert parcel.data["user_responses"] == ["Where is my parcel?", "Thanks."]
    assert parcel.data["expected"]["responses"] == ["It was due yesterday."]
    assert parcel.ignored == ("row: public is not one of those in where", "row: the speaker system is ignored")
    assert (lamps.data["id"], lamps.data["expected"]["responses"]) == ("18", ["Twelve."])


@pytest.mark.parametrize("kind", ["parquet", "arrow", "json", "jsonl"])
def test_messages_in_rows_of_other_tables_are_read(tmp_path: Path, kind: str) -> None:
    """Numbers, booleans and times as their types: Chatwoot's message_type, Freshdesk's incoming."""
    rows = [
        {"chat": 5, "incoming": False, "at": 2, "text": "Lost.", "dialog": None},
        {"chat": 5, "incoming": True, "at": 1, "text": "Where?", "dialog": None},
    ]
    settings = {"group_by": "chat", "speaker": "incoming", "text": "text", "order": "at"}
    tags = {"true": "user", "false": "assistant"}
    (read,) = records(write(tmp_path, kind, rows), kind, messages={**settings, "tags": tags})
    assert read.data is not None
    assert (read.data["id"], read.data["user_responses"]) == ("5", ["Where?"])
    assert read.data["expected"]["responses"] == ["Lost."]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("17,agent,2026-11-20T10:02", "17,owl,2026-11-20T10:02", "unknown speaker: owl in column author. Say in the"),
        ("18,end-user,2026-11-20T09:00:00Z", "18,end-user,soon", "order cannot be read: column created is soon, not a"),
        ("18,end-user", ",end-user", "no conversation: column ticket is "),
    ],
)
def test_a_row_that_cannot_be_read_has_a_reason(tmp_path: Path, old: str, new: str, problem: str) -> None:
    """It costs its conversation; a row without one costs the rest of its conversation where that has no user."""
    path = tmp_path / "desk.csv"
    path.write_text(DESK.replace(old, new))
    problems = [record.problem for record in records(path, "csv", messages=MESSAGES) if record.problem is not None]
    assert problems[0][: len(problem)] == problem
    assert problems[1:] == (["no user turn: a scenario needs one"] if new.startswith(",") else [])
