"""Alpaca, and prompts with their completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records


def read(tmp_path: Path, kind: str, item: Any, **settings: Any) -> SourceRecord:
    """The record of one line."""
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(item))
    (record,) = read_records(ChatSource.model_validate({"kind": kind, "path": str(path), **settings}))
    return record


def test_alpaca_is_a_turn_with_its_reply(tmp_path: Path) -> None:
    """Instruction and input are one turn; the rendered prompt beside them is counted; history comes before."""
    item = {
        "instruction": "Translate.",
        "input": "Hallo",
        "output": "Hello",
        "text": "### Instruction",
        "system": "Be kind.",
    }
    record = read(tmp_path, "alpaca", {**item, "history": [["Hi.", "Yes?"]]})
    assert record.data is not None
    assert record.data["user_responses"] == ["Hi.", "Translate.\n\nHallo"]
    assert (record.data["expected"]["responses"], record.data["context"]) == (["Yes?", "Hello"], "Be kind.")
    assert record.ignored == ("record.text: the prompt once more, as it was rendered",)


def test_keys_of_instructions_are_settings(tmp_path: Path) -> None:
    """Dolly's names; a record without the instruction says which keys it has."""
    keys = {"instruction": "question", "input": "context", "output": "response"}
    record = read(tmp_path, "alpaca", {"question": "Why?", "context": "", "response": "So."}, names=keys)
    assert record.data is not None
    assert (record.data["user_responses"], record.data["expected"]["responses"]) == (["Why?"], ["So."])
    problem = read(tmp_path, "alpaca", {"q": "x"}).problem
    assert problem == "no instruction: the record has q. Name its key in the source's names"
    assert (read(tmp_path, "alpaca", {"instruction": "x", "history": [["a"]]}).problem or "").startswith(
        "history is not"
    )


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [
        ("2 + 2?", "4"),
        ("[1, 2] + [3]?", "{4}"),
        ([{"role": "user", "content": "2 + 2?"}], [{"role": "assistant", "content": "4"}]),
        ([{"role": "user", "content": "2 + 2?"}], {"role": "assistant", "content": "4"}),
    ],
)
def test_a_prompt_with_its_completion_is_a_turn(tmp_path: Path, prompt: Any, completion: Any) -> None:
    """As texts, also those that look like JSON, and as messages, as TRL has them."""
    record = read(tmp_path, "prompt_completion", {"prompt": prompt, "completion": completion})
    assert record.data is not None, record.problem
    texts = [item if isinstance(item, str) else "2 + 2?" for item in (prompt,)]
    assert record.data["user_responses"] == texts
    assert record.data["expected"]["responses"] == [completion if isinstance(completion, str) else "4"]
