"""Settings that are guessed for a file: each format of the table, and what is said about the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.sources import read_records

USER = {"role": "user", "content": "2 + 2?"}
CHAT = [USER, {"role": "assistant", "content": "4"}]
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "Braintrust, data set": ("a.jsonl", {"id": "a", "input": "2 + 2?", "expected": "4"}, {"kind": "input_output"}),
    "OpenAI evals": ("a.jsonl", {"input": [USER], "ideal": "4"},
                     {"kind": "input_output", "names": {"expected": "ideal"}}),
    "OpenAI evals, items": ("a.jsonl", {"item": {"question": "2 + 2?", "correct_label": "4"}},
                            {"kind": "input_output",
                             "names": {"input": "item.question", "expected": "item.correct_label"}}),
    "Langfuse, data set": ("a.json", [{"id": "a", "input": "2 + 2?", "expectedOutput": "4"}],
                           {"kind": "input_output", "names": {"expected": "expectedOutput"}}),
    "LangSmith, data set": ("a.jsonl", {"inputs": {"question": "2 + 2?"}, "outputs": {"answer": "4"}},
                            {"kind": "input_output", "names": {"input": "inputs", "output": "outputs"}}),
    "lm-eval": ("a.jsonl", {"doc": {"q": "2 + 2?"}, "target": "4", "resps": [["5"]],
                            "arguments": {"gen_args_0": {"arg_0": "2 + 2?", "arg_1": {}}}},
                {"kind": "input_output", "names": {"input": "arguments.gen_args_0.arg_0", "expected": "target"}}),
    "promptfoo": ("a.json", {"results": {"prompts": [{"raw": "x"}], "results": [
        {"prompt": {"raw": json.dumps([USER])}, "response": {"output": "4"}}]}, "config": {"tests": [{"vars": {}}]}},
        {"kind": "input_output", "records": "results.results",
         "names": {"input": "prompt.raw", "output": "response.output"}}),
    "Argilla": ("a.jsonl", {"id": "a", "fields": {"instruction": "2 + 2?", "response": "4"}, "responses": {}},
                {"kind": "input_output", "names": {"input": "fields.instruction", "output": "fields.response"}}),
    "Label Studio": ("a.json", [{"id": 1, "annotations": [], "data": {"dialogue": [
        {"author": "user", "text": "2 + 2?"}, {"author": "agent", "text": "4"}]}}],
        {"kind": "input_output", "names": {"input": "data.dialogue", "role": "author", "content": "text"}}),
    "Zeno": ("a.json", [{"data": [USER], "label": "4", "output": "5"}],
             {"kind": "input_output", "names": {"input": "data", "expected": "label"}}),
    "UltraChat": ("a.jsonl", {"id": "a", "data": ["2 + 2?", "4"]},
                  {"kind": "input_output", "names": {"input": "data"}}),
    "OpenAssistant, trees": ("a.jsonl", {"message_tree_id": "m", "prompt": {"role": "prompter", "text": "2 + 2?",
        "replies": [{"role": "assistant", "text": "5", "rank": 1, "replies": []},
                    {"role": "assistant", "text": "4", "rank": 0, "replies": []}]}}, {"kind": "openai_messages"}),
    "W&B, table": ("a.table.json", {"columns": ["prompt", "completion"], "data": [["2 + 2?", "4"]]},
                   {"kind": "prompt_completion"}),
    "SWE-agent": ("a.traj", {"trajectory": [{"action": "ls"}], "history": CHAT, "info": {}},
                  {"kind": "openai_messages", "column": "history"}),
    "tau2-bench, results": ("a.json", {"tasks": [{"id": "0"}], "simulations": [{"id": "s", "messages": CHAT}]},
                            {"kind": "openai_messages", "records": "simulations"}),
    "a wrapped list": ("a.json", {"data": [{"messages": CHAT}]}, {"kind": "openai_messages", "records": "data"}),
    "no suffix": ("export", {"messages": CHAT}, {"kind": "openai_messages"}),
    "capitals": ("A.JSON", [{"messages": CHAT}], {"kind": "openai_messages"}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "settings"), CASES.values(), ids=CASES)
def test_a_format_is_guessed_and_its_question_and_answer_are_read(
    tmp_path: Path, name: str, content: Any, settings: dict[str, Any]
) -> None:
    """Nothing of the exchange is lost: the question is the user's turn, and the right answer is the reference."""
    path = tmp_path / name
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    source = guess_source(path)
    assert source.model_dump(exclude_defaults=True) | {"kind": source.kind} == {**settings, "path": str(path)}
    (record,) = read_records(source)
    assert record.data is not None, record.problem
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["2 + 2?"], ["4"])


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
