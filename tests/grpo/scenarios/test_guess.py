"""Settings that are guessed for a file: each format of the table, and what is said about the others."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.export_samples import CALL_EXPORTS, EXPORTS, Export


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_a_format_is_guessed_and_its_question_and_answer_are_read(tmp_path: Path, export: Export) -> None:
    """Nothing of the exchange is lost: the question is the user's turn, and the right answer is the reference."""
    path = tmp_path / export.file
    path.write_text(json.dumps(export.content) + "\n", encoding="utf-8")
    source = guess_source(path)
    assert source.model_dump(exclude_defaults=True) | {"kind": source.kind} == {**export.settings, "path": str(path)}
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["2 + 2?"], ["4"])


@pytest.mark.parametrize("suffix", ["json", "jsonl", "csv", "parquet"])
@pytest.mark.parametrize("export", CALL_EXPORTS, ids=lambda export: export.name)
def test_calls_that_answer_a_question_are_expected(tmp_path: Path, export: Export, suffix: str) -> None:
    """In each format of a file. The tools are in JSON's types, and only the parameter without a default is required."""
    path = tmp_path / f"a.{suffix}"
    write_rows(path, export.content)
    source = guess_source(path)
    settings = source.model_dump(exclude_defaults=True)
    assert (settings.get("chat") or settings)["names"] == export.settings["names"]
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == ["2 + 2?"]
    assert record.data["expected"] == {
        "responses": [],
        "calls": [{"name": "add", "arguments": {"a": 2, "b": 2}, "turn": 0}],
    }
    parameters = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert record.data["tools"] == [
        {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": parameters, "required": ["a"]},
        }
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in the format of the suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        text = "\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"conversation_a": [], "conversation_b": []}', "two chats to compare"),
        ("a.jsonl", '{"message_id": "b", "parent_id": "a", "text": "Hi.", "role": "prompter"}', "message of a tree"),
        ("a.jsonl", "\x07\n", r"a\.jsonl:1 broken JSON"),
        ("a.txt", "User: Hi.\n", r"end in \.csv, .* or that are JSON"),
        ("a.xlsx", "PK\x03\x04", "an Excel workbook or another archive"),
    ],
)
def test_a_file_that_cannot_be_guessed_says_what_it_is(tmp_path: Path, name: str, content: str, reason: str) -> None:
    """And what to do."""
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=reason):
        guess_source(path)


@pytest.mark.parametrize("question", ["question", "query", "utterance", "text", "subject"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_questions_with_outputs_is_read(tmp_path: Path, question: str, suffix: str) -> None:
    """Whatever else can be named output."""
    path = tmp_path / f"a.{suffix}"
    path.write_text(
        f"{question},output\n2 + 2?,4\n" if suffix == "csv" else json.dumps({question: "2 + 2?", "output": "4"}) + "\n"
    )
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["2 + 2?"], ["4"])


def test_an_input_next_to_a_question_and_its_answer_is_no_exchange(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "2 + 2?", "answer": "4", "input": "a page"}) + "\n")
    (record,) = read_records(guess_source(path))
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["2 + 2?"], ["4"])


def test_a_label_of_a_whole_chat_is_no_reply(tmp_path: Path) -> None:
    """The agent's last message is the reply that is expected."""
    chat = [{"role": role, "content": text} for role, text in (("user", "Hi."), ("assistant", "Yes?"))]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"input": chat, "label": "complaint"}) + "\n")
    source = guess_source(path)
    assert (source.kind, getattr(source, "column", None)) == ("openai_messages", "input")


def test_a_file_that_cannot_be_read_is_named() -> None:
    """A read error of a disk or a share has no name of its own. This file of Linux gives one for the first byte."""
    with pytest.raises(DataError, match=r"^source /proc/self/mem cannot be read at its beginning: OSError.*Fix it"):
        guess_source(Path("/proc/self/mem"))


def _guessed(path: Path, rows: list[dict[str, Any]]) -> Any:
    write_rows(path, rows)
    return guess_source(path)


@pytest.mark.parametrize(
    ("columns", "order"),
    [
        ({"seq": [3, 4, 1, 2]}, "seq"),
        ({"seq": [1, 1, 2, 3]}, None),
        ({"order": [981, 42, 77, 5]}, None),  # numbers of orders, and no counter
        ({"date": ["2026-01-01"] * 4, "time": ["10:04", "10:03", "10:02", "10:01"]}, ["date", "time"]),
        ({"date": ["20/11/2026"] * 4, "time": ["10:01", "10:02", "10:03", "10:04"]}, None),
        ({"time": ["10:04 AM", "10:03 AM", "10:02 AM", "10:01 AM"]}, "time"),
        ({"time": ["23:57", "23:58", "00:01", "00:02"]}, None),
        ({"time": ["12:58", "12:59", "1:02", "1:03"]}, None),
        ({"time": ["58:10", "58:40", "1:00:05", "1:00:20"]}, None),
        (
            {"created_at": ["10:01", "10:01", "10:02", "10:03"], "message_id": [3, 2, 4, 5]},
            ["created_at", "message_id"],
        ),
        ({"created_at": ["10:01", "10:01", "10:02", "10:03"], "message_id": [981, 42, 77, 12]}, "created_at"),
        ({"created_at": ["10:01", "10:02", "10:03", "10:04"], "message_id": [4, 3, 2, 1]}, "created_at"),
        ({"message_id": [4, 3, 2, 1]}, None),
    ],
)
def test_the_order_of_messages_is_found(tmp_path: Path, columns: dict[str, list[Any]], order: Any) -> None:
    """By a counter, by the date in front of the time of day, and by ids that rise with the time."""
    days = columns.get("created_at", [])
    columns = {**columns, **({"created_at": [f"2026-01-01 {day}" for day in days]} if days else {})}
    rows = [
        {"ticket_id": "t", "role": ("customer", "agent")[k % 2], "body": str(k)}
        | {name: cells[k] for name, cells in columns.items()}
        for k in range(4)
    ]
    found = _guessed(tmp_path / "a.csv", rows).messages.order
    assert found == (tuple(order) if isinstance(order, list) else order)


@pytest.mark.parametrize("name", ["prompt", "question"])
@pytest.mark.parametrize("written", [json.dumps, str])
def test_messages_in_the_column_of_a_question_are_no_text(tmp_path: Path, name: str, written: Any) -> None:
    """Pairs with messages in the prompt, and tables that pandas wrote."""
    messages = written([{"role": "user", "content": "It's late."}])
    rows = [{name: messages, "chosen": "a", "rejected": "b"}] * 2
    with pytest.raises(DataError, match=rf"column {name} is not a text: it has a list of messages with role, content"):
        _guessed(tmp_path / "a.csv", rows)


def test_an_answer_next_to_the_ground_truth_is_no_reference(tmp_path: Path) -> None:
    """Tables of evaluations have what a model has replied, and what is right."""
    rows = [{"question": "1 + 1?", "answer": "3", "ground_truth": "2"}] * 2
    assert _guessed(tmp_path / "a.jsonl", rows).columns["expected.responses"] == "ground_truth"


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        pytest.param({"question": "Capital?", "choices": ["Rome", "Paris"], "answer": 1}, "choices", id="MMLU"),
        pytest.param(
            {"question": "Capital?", "choices": {"text": ["Rome", "Paris"], "label": ["A", "B"]}, "answerKey": "B"},
            "choices.text, choices.label",
            id="ARC",
        ),
        pytest.param(
            {"question": "Capital?", "option_a": "Rome", "option_b": "Paris", "correct_answer": "B"},
            "option_a, option_b",
            id="a column for each choice",
        ),
        pytest.param({"prompt": "Capital?", "options": ["Rome", "Paris"], "completion": "B"}, "options", id="a pair"),
    ],
)
def test_a_letter_is_no_reply_to_a_question_whose_choices_the_user_does_not_show(
    tmp_path: Path, row: dict[str, Any], columns: str
) -> None:
    """The answer would be a number or a letter without a meaning."""
    with pytest.raises(DataError, match=f"a question with choices in {columns}, and its answer is the letter"):
        _guessed(tmp_path / "a.jsonl", [row, row])


@pytest.mark.parametrize("answer", ["Paris", "We ship to all of them."])
def test_a_text_is_a_reply_to_a_question_with_choices(tmp_path: Path, answer: str) -> None:
    row = {"question": "Capital?", "options": ["Rome", "Paris"], "answer": answer}
    assert _guessed(tmp_path / "a.jsonl", [row, row]).columns["expected.responses"] == "answer"


def test_broken_quotes_are_named(tmp_path: Path) -> None:
    """If no row can be read."""
    path = tmp_path / "a.csv"
    path.write_text('question,answer\n"He said \\"hi\\", ok",r\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv:2 broken quoting"):
        guess_source(path)


def test_blank_lines_of_a_table_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("question,answer\r\n\r\na,b\r\n\r\n", encoding="utf-8")
    (record,) = read_records(guess_source(path))
    assert record.data is not None
    assert record.data["user_responses"] == ["a"]
