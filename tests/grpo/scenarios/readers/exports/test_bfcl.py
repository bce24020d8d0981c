"""Questions of the Berkeley Function Calling Leaderboard, and its files without a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.errors import DataError
from grpo.scenarios.guess import guess_source
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED

FUNCTION = {"name": "look_up", "description": "Look up.", "parameters": {
    "type": "dict", "required": ["order"], "properties": {
        "order": {"type": "string"}, "days": {"type": "tuple", "items": {"type": "float"}}}}}  # fmt: skip
SERVICES = {"initial_config": {}, "involved_classes": ["TradingBot", "MathAPI"], "path": ["TradingBot.buy"]}


def write(tmp_path: Path, *records: Any) -> Path:
    """A file as the leaderboard has it: lines, under the name of a document."""
    path = tmp_path / "BFCL_v4_simple_python.json"
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_the_messages_of_all_turns_and_the_functions_are_read(tmp_path: Path):
    """With types in the words of JSON Schema. The right calls are in another file, which is counted."""
    turns = [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": ASKED}],
             [{"role": "user", "content": "And 8?"}]]  # fmt: skip
    questions = [{"id": f"simple_{n}", "question": turns, "function": [FUNCTION]} for n in range(2)]
    source = guess_source(write(tmp_path, *questions))
    first, second = read_records(source)
    assert first.data is not None, first.problem
    assert second.data is not None
    assert [record["id"] for record in (first.data, second.data)] == ["simple_0", "simple_1"]
    assert (first.data["context"], first.data["user_responses"]) == ("Be kind.", [ASKED, "And 8?"])
    (tool,) = first.data["tools"]
    assert tool["parameters"] == {"type": "object", "required": ["order"], "properties": {
        "order": {"type": "string"}, "days": {"type": "array", "items": {"type": "number"}}}}  # fmt: skip
    assert "record: the right calls, which are in another file of the leaderboard" in first.ignored


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            {"id": "m", "question": [[{"role": "user", "content": ASKED}]], **SERVICES},
            "the task runs in services: TradingBot, MathAPI. Read multi-turn tasks with kind: bfcl_multi_turn",
        ),
        (
            {"id": "simple_0", "ground_truth": [{"look_up": {"order": ["7"]}}]},
            r"the record has an answer \(id, ground_truth\) and no question",
        ),
        (
            {"id": "a", "result": "[f()]", "input_token_count": 1, "output_token_count": 1, "latency": 0.1},
            r"the record has an answer \(id, result, .*\) and no question",
        ),
    ],
)
def test_a_task_in_services_and_files_without_a_question_are_refused(tmp_path: Path, record: Any, reason: str):
    """With the file or the kind to take instead."""
    with pytest.raises(DataError, match=reason):
        guess_source(write(tmp_path, record, {**record, "id": "b"}))
