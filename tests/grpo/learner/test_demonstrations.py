from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo.config.sft import LoggedDemonstrations, WrittenDemonstrations
from grpo.errors import DataError
from grpo.learner.demonstrations import read_demonstrations, with_system_prompt
from grpo.log.conversation import LoggedConversation
from grpo.log.folder import ServedLog
from grpo.log.join import join
from grpo.log.lines import encode
from grpo.messages import Message, ToolCall
from grpo.scenarios.conversation_log import ConversationLog
from tests.grpo.log.fixtures import feedback, turn

QUESTION, ANSWER = Message(role="user", content="hi"), Message(role="assistant", content="hello")


def written(folder: Path, *lines: str) -> WrittenDemonstrations:
    path = folder / "demonstrations.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return WrittenDemonstrations(kind="jsonl", path=str(path))


def test_conversations_of_a_file_come_in_order_with_their_calls(tmp_path: Path):
    """Blank lines are skipped."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "route", "arguments": {"team": "sales"}}}]}
    lines = [
        json.dumps({"messages": [{"role": "user", "content": "hi"}, turn]}) for turn in (ANSWER.to_template(), call)
    ]
    first, second = read_demonstrations(written(tmp_path, lines[0], "", lines[1]))
    assert first == (QUESTION, ANSWER)
    assert second[1].tool_calls == (ToolCall(name="route", arguments={"team": "sales"}),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1 is not a conversation .JSONDecodeError"),
        ('{"turns": []}', "line 1 is not a conversation .KeyError: 'messages'"),
        ('{"messages": []}', "needs a turn of the user and then one of the agent, got no message"),
        ('{"messages": [{"role": "user", "content": "hi"}]}', "needs a turn of the user and then"),
        (
            '{"messages": [{"role": "assistant", "content": "hi"}]}',
            "needs a turn of the user and then one of the agent",
        ),
        ("", "no demonstration in .*. Add some, or leave sft out"),
    ],
)
def test_a_line_that_is_not_a_conversation_is_an_error_with_its_place(tmp_path: Path, line: str, reason: str):
    """Nothing is skipped silently."""
    with pytest.raises(DataError, match=reason):
        read_demonstrations(written(tmp_path, line))


def test_conversations_are_in_the_format_of_openai(tmp_path: Path):
    """Arguments as JSON text, ids of calls, contents as parts, and the reasoning of a turn."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "7"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where is 7?"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "look"},
        {"role": "tool", "tool_call_id": "call_1", "content": "lost"},
        {"role": "assistant", "content": "Lost."},
    ]
    (conversation,) = read_demonstrations(written(tmp_path, json.dumps({"messages": messages, "tools": []})))
    assert [message.role for message in conversation] == ["system", "user", "assistant", "tool", "assistant"]
    assert conversation[1].content == "Where is 7?"
    assert conversation[2].tool_calls == (ToolCall(name="look_up", arguments={"order": "7"}),)
    assert conversation[2].reasoning == "look"


def test_a_turn_that_must_not_be_learned_is_refused(tmp_path: Path):
    """OpenAI's weight 0 leaves a turn out of the loss, which is on all turns of the agent here."""
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello.", "weight": 0}]
    with pytest.raises(DataError, match=r"line 1 is not a conversation .*weight 0"):
        read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))


def test_legacy_calls_and_refusals_are_turns(tmp_path: Path):
    """The call of a function with its result, and a refusal as the text of a turn."""
    turns = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "2"},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    path = tmp_path / "demonstrations.jsonl"
    path.write_text(json.dumps({"messages": turns}))
    (conversation,) = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert [(message.role, message.content) for message in conversation[2:]] == [("tool", "2"), ("assistant", "No.")]
    assert conversation[1].tool_calls == (ToolCall(name="f", arguments={"x": 1}),)


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"content": None, "audio": {"id": "a1"}}, "message.audio cannot be read: sound is not read; message 1"),
        ({"content": " "}, "message 1 of the assistant is empty"),
        ({"content": "x", "weight": 0.5}, r"weight is not 0 or 1: 0\.5"),
        ({"content": "x", "reasoning": [{"type": "text", "text": "y"}]}, "reasoning is not a text: list in message 1"),
    ],
)
def test_a_turn_that_would_be_misread_is_refused(tmp_path: Path, turn: dict, reason: str):
    """Fields of other interfaces, and weights between."""
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", **turn}]
    with pytest.raises(DataError, match=reason):
        read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))


def test_results_follow_the_order_of_their_calls(tmp_path: Path):
    """Calls a and b, results b and a by their ids; an id of no call is refused."""
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    turns = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "of b"},
        {"role": "tool", "tool_call_id": "a", "content": "of a"},
        {"role": "assistant", "content": "Done."},
    ]
    (conversation,) = read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))
    assert [message.content for message in conversation] == ["Hi.", "", "of a", "of b", "Done."]
    turns[2]["tool_call_id"] = "c"
    with pytest.raises(DataError, match=r"message 2, for id c\. Calls that wait for one: a, b"):
        read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))


def test_a_missing_file_is_an_error_that_names_the_setting(tmp_path: Path):
    """With its path."""
    source = WrittenDemonstrations(kind="jsonl", path=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: .*\. Correct sft\.demonstrations\.path"):
        read_demonstrations(source)


def test_logged_conversations_are_imitated_where_they_succeeded(tmp_path: Path):
    """Of rewards 1, .9, none and 1.2 the first and the last reach 1."""
    log = ConversationLog(tmp_path)
    log.write(
        LoggedConversation(
            id=f"c{index}",
            time=datetime(2026, 1, 1, index, tzinfo=UTC),
            model="m",
            messages=(Message(role="user", content=str(index)), ANSWER),
            reward=reward,
        )
        for index, reward in enumerate((1.0, 0.9, None, 1.2))
    )
    source = LoggedDemonstrations(kind="conversation_log", path=str(tmp_path))
    assert [conversation[0].content for conversation in read_demonstrations(source)] == ["0", "3"]
    every = LoggedDemonstrations(kind="conversation_log", path=str(tmp_path), min_reward=0.5)
    assert len(read_demonstrations(every)) == 3


def test_the_log_of_grpo_serve_is_copied_first(tmp_path: Path):
    """It grows, so that a run would read another one when it is repeated; the copy has what succeeded."""
    (tmp_path / "served" / "segments").mkdir(parents=True)
    success = feedback("f", success=True)
    (tmp_path / "served" / "segments" / "20261122T030000-3fa1.log").write_bytes(encode(turn("a")) + encode(success))
    with pytest.raises(DataError, match=r"is the log of grpo serve, which grows\. Write its conversations to a conv"):
        read_demonstrations(LoggedDemonstrations(kind="conversation_log", path=str(tmp_path / "served")))
    served = join(ServedLog(tmp_path / "served").read()).conversations
    ConversationLog(tmp_path / "copy").write([conversation.logged() for conversation in served])
    (copied,) = read_demonstrations(LoggedDemonstrations(kind="conversation_log", path=str(tmp_path / "copy")))
    assert copied == served[0].messages


def test_a_damaged_row_of_a_log_is_an_error(tmp_path: Path):
    """Not a demonstration less."""
    (tmp_path / "2026-01-01").mkdir()
    (tmp_path / "2026-01-01" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a\.parquet, row 1: damaged file"):
        read_demonstrations(LoggedDemonstrations(kind="conversation_log", path=str(tmp_path)))


def test_the_system_prompt_is_that_of_the_environment_unless_there_is_one():
    """An empty prompt adds no message."""
    system = Message(role="system", content="own")
    assert with_system_prompt((QUESTION, ANSWER), "desk")[0] == Message(role="system", content="desk")
    assert with_system_prompt((system, QUESTION, ANSWER), "desk") == (system, QUESTION, ANSWER)
    assert with_system_prompt((QUESTION, ANSWER), "") == (QUESTION, ANSWER)
