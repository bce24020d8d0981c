"""Sessions of Codex: calls in forms of their own, summaries of earlier turns, and lines that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.config.scenarios import ChatSource
from grpo.scenarios.records import SourceRecord
from grpo.scenarios.sources import read_records
from tests.grpo.scenarios.chat_samples import ASKED, DONE
from tests.grpo.scenarios.program_samples import CODEX_ITEMS, codex_lines

QUESTION, *_, REPLY = CODEX_ITEMS


def read(tmp_path: Path, *lines: Any) -> SourceRecord:
    """The record of a session."""
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    (record,) = read_records(ChatSource(kind="openai_messages", path=str(path)))
    return record


@pytest.mark.parametrize(
    ("call", "output", "name", "arguments"),
    [
        (
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"},
            "apply_patch",
            {"input": "*** Begin Patch"},
        ),
        (
            {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "function_call_output", "call_id": "c1", "output": {"content": "Done!", "success": True}},
            "local_shell",
            {"type": "exec", "command": ["ls"]},
        ),
    ],
)
def test_a_call_in_a_form_of_its_own_becomes_the_call_of_a_function(
    tmp_path: Path, call: dict[str, Any], output: dict[str, Any], name: str, arguments: dict[str, Any]
):
    """A tool that takes a text has it as its argument `input`, and the shell has its action."""
    record = read(tmp_path, *codex_lines(QUESTION, call, output, REPLY))
    assert record.data is not None, record.problem
    assert record.data["world"]["recorded"] == [{"name": name, "arguments": arguments, "turn": 0, "result": "Done!"}]
    assert record.data["expected"] == {"responses": [DONE]}


@pytest.mark.parametrize(
    "summary",
    [
        {"timestamp": "t", "type": "compacted", "payload": {"message": "They asked for order 7."}},
        {"timestamp": "t", "type": "response_item", "payload": {"type": "compaction", "encrypted_content": "gA"}},
    ],
)
def test_the_chat_ends_where_a_summary_replaces_the_turns(tmp_path: Path, summary: dict[str, Any]):
    """The model read the summary in the later turns, and not the turns before it."""
    later = codex_lines(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And 8?"}]}, REPLY
    )
    record = read(tmp_path, *codex_lines(QUESTION, REPLY), summary, *later[3:])
    assert record.data is not None, record.problem
    assert record.data["user_responses"] == [ASKED]
    assert any("turns after a summary" in reason for reason in record.ignored)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            codex_lines(QUESTION, {"type": "web_search_call", "id": "w1", "status": "completed"}, REPLY),
            "item web_search_call cannot be read: the API made this call itself",
        ),
        (
            [*codex_lines(QUESTION), {"timestamp": "t", "type": "response_item", "payload": "Hi"}],
            "a response_item has no object under payload",
        ),
        (codex_lines(QUESTION, {"type": ["message"]}, REPLY), "no role: message 1 has type"),
        ([*codex_lines(QUESTION, REPLY), '{"timestamp": "t", "type": "resp'], "line 7 of the chat cannot be read"),
        (codex_lines(QUESTION, CODEX_ITEMS[2], REPLY), "unanswered tool call: look_up"),
    ],
)
def test_a_session_that_is_not_whole_is_quarantined(tmp_path: Path, lines: list[Any], problem: str):
    """With the reason. The last line is half there if Codex was killed."""
    assert (read(tmp_path, *lines).problem or "").startswith(problem)


def test_a_session_has_at_most_two_thousand_messages_and_any_number_of_events(tmp_path: Path):
    """2,001 items are too many. 3,000 events are left out."""
    events = codex_lines()[1:2] * 3_000
    assert read(tmp_path, *codex_lines(QUESTION), *events, *codex_lines(REPLY)[3:]).problem is None
    too_long = "over-long chat: over 2000 messages. Delete lines at the end of the file"
    assert read(tmp_path, *codex_lines(*[QUESTION] * 2_001)).problem == too_long


def test_a_long_session_is_not_cut_at_the_line_that_is_too_many(tmp_path: Path):
    """Of 2,010 items 20 are not read, so that the chat has 1,990. Without the reply at the end it would be another."""
    items = [*[QUESTION] * 1_989, *[{"type": "ghost_snapshot"}] * 20, REPLY]
    assert (read(tmp_path, *codex_lines(*items)).problem or "").startswith("over-long chat")
