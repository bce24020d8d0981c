from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo.agents.multi_turn import MultiTurnAgent
from grpo.config.sft import ServedDemonstrations, WrittenDemonstrations
from grpo.environments.environment import Environment
from grpo.errors import DataError
from grpo.learner.offline.demonstrations import read_demonstrations, with_agent_prompt, with_system_prompt
from grpo.log import LoggedConversation, ServingLog, append
from grpo.messages import Message, ToolCall
from grpo.scenarios.readers.served import served_snapshot
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
        ("{", "line 1 is not a conversation .broken JSON: EOF"),
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


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"label": False}, "label says that its reply is not desired. Leave the conversation out"),
        ({"label": -1}, "label says that its reply is not desired. Leave the conversation out"),
        ({"verdict": "bad"}, "verdict says that its reply is not desired. Leave the conversation out"),
        ({"kto_tag": 0}, "kto_tag says that its reply is not desired. Leave the conversation out"),
        ({"images": ["a.png"]}, "record.images cannot be read: content other than text is not read"),
    ],
)
def test_fields_that_make_it_another_conversation_are_refused(tmp_path: Path, fields: dict[str, object], reason: str):
    """A label of preference data, and pictures."""
    record = {"messages": [QUESTION.to_template(), ANSWER.to_template()], **fields}
    with pytest.raises(DataError, match=reason):
        read_demonstrations(written(tmp_path, json.dumps(record)))


def test_a_system_prompt_beside_the_messages_comes_first(tmp_path: Path):
    """As Anthropic's fine-tuning files have it. Several system messages become one, as in service."""
    messages = [{"role": "developer", "content": "Be kind."}, QUESTION.to_template(), ANSWER.to_template()]
    [conversation] = read_demonstrations(written(tmp_path, json.dumps({"system": "Be brief.", "messages": messages})))
    assert conversation == (Message(role="system", content="Be brief.\n\nBe kind."), QUESTION, ANSWER)
    parts = [{"type": "text", "text": "Be kind."}]
    for system in (parts, "Be kind.", " "):
        [conversation] = read_demonstrations(written(tmp_path, json.dumps({"system": system, "messages": messages})))
        assert conversation == (Message(role="system", content="Be kind."), QUESTION, ANSWER)


def test_a_number_under_label_is_the_name_of_a_class(tmp_path: Path):
    """Only a switch says whether the reply is desired."""
    record = {"messages": [QUESTION.to_template(), ANSWER.to_template()], "label": 0}
    assert len(read_demonstrations(written(tmp_path, json.dumps(record)))) == 1


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
    """Calls a and b, results b and a by their ids, become one list, as in service; an id of no call is refused."""
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "ab"]
    turns = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": "of b"},
        {"role": "tool", "tool_call_id": "a", "content": "of a"},
        {"role": "assistant", "content": "Done."},
    ]
    (conversation,) = read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))
    assert [message.content for message in conversation] == ["Hi.", "", '["of a", "of b"]', "Done."]
    turns[2]["tool_call_id"] = "c"
    with pytest.raises(DataError, match=r"message 2, for id c\. Calls that wait for one: a, b"):
        read_demonstrations(written(tmp_path, json.dumps({"messages": turns})))


def test_a_missing_file_is_an_error_that_names_the_setting(tmp_path: Path):
    """With its path."""
    source = WrittenDemonstrations(kind="jsonl", path=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: .*\. Correct sft\.demonstrations\.path"):
        read_demonstrations(source)


def logged(folder: Path, name: str, **outcome: object) -> None:
    """A conversation of another server, in which the user writes a letter and gets an answer."""
    messages = (Message(role="user", content=name), ANSWER)
    time = datetime(2021, 1, 1, ord(name) - ord("a"), tzinfo=UTC)
    fields = {"id": name, "time": time, "model": "m", "messages": messages, "consent": "training", "licence": "own"}
    append(folder, [LoggedConversation.model_validate(fields | outcome)])


def served(folder: Path, **settings: Any) -> ServedDemonstrations:
    return ServedDemonstrations(kind="served", path=str(folder), licences=("own",), **settings)


def test_served_conversations_are_imitated_where_they_succeeded(tmp_path: Path):
    """Of a success, a failure, a liked conversation and an unknown outcome. Consent is needed for a success, too."""
    logged(tmp_path, "a", success=True)
    logged(tmp_path, "b", success=False, rating=1.0)
    logged(tmp_path, "c", rating=0.75)
    logged(tmp_path, "d")
    logged(tmp_path, "e", success=True, consent="")
    logged(tmp_path, "f", success=True, licence="other")
    assert read_demonstrations(served(tmp_path)) == [(Message(role="user", content="a"), ANSWER)]
    rated = read_demonstrations(served(tmp_path, min_rating=0.75))
    assert [conversation[0].content for conversation in rated] == ["a", "c"]


def test_a_log_without_a_success_says_why_nothing_is_imitated(tmp_path: Path):
    """With the number of each reason."""
    logged(tmp_path, "a", success=False)
    logged(tmp_path, "b", success=True, consent="")
    with pytest.raises(DataError, match=r"no demonstration in the serving log .*: 1 consent not allowed, 1 no success"):
        read_demonstrations(served(tmp_path))
    with pytest.raises(DataError, match="it has no conversation"):
        read_demonstrations(served(tmp_path / "none"))


def test_a_corrected_conversation_is_imitated_with_its_correction(tmp_path: Path):
    """It succeeded all the same; it ends with the corrected reply. Another key's success is a demonstration itself."""

    async def serve() -> None:
        async with ServingLog(tmp_path) as log:
            for record in (
                *(turn("a"), turn("b", "a"), feedback("f", success=True)),
                feedback("g", turn_id="a", correction="Write to anna@example.org."),
                *(replace(turn("d"), conversation_id="d"), feedback("h", conversation_id="d", success=True)),
            ):
                await log.append(record)

    asyncio.run(serve())
    whole, corrected = read_demonstrations(served(tmp_path))
    assert [message.content for message in whole] == ["Question d?", "Answer d."]
    assert [message.content for message in corrected] == ["Question a?", "Write to [email]."]


def test_a_success_that_begins_with_the_agent_is_left_out(tmp_path: Path):
    """The loss would be on a reply to nothing. A reply without words or calls is not imitated either."""
    logged(tmp_path, "a", success=True, messages=(ANSWER, QUESTION, ANSWER))
    logged(tmp_path, "b", success=True, messages=(QUESTION, Message(role="assistant", content=" ")))
    with pytest.raises(DataError, match="1 begins with a reply, 1 empty reply"):
        read_demonstrations(served(tmp_path))


def test_a_pinned_log_does_not_grow(tmp_path: Path):
    """Only the next run reads conversations that are logged later."""
    logged(tmp_path, "a", success=True)
    pinned = served_snapshot(served(tmp_path))
    logged(tmp_path, "b", success=True)
    assert len(read_demonstrations(pinned)) == 1
    assert len(read_demonstrations(served(tmp_path))) == 2


def test_the_system_prompt_is_that_of_the_environment_unless_there_is_one():
    """An empty prompt adds no message."""
    system = Message(role="system", content="own")
    assert with_system_prompt((QUESTION, ANSWER), "desk")[0] == Message(role="system", content="desk")
    assert with_system_prompt((system, QUESTION, ANSWER), "desk") == (system, QUESTION, ANSWER)
    assert with_system_prompt((QUESTION, ANSWER), "") == (QUESTION, ANSWER)


def test_the_instructions_of_an_agent_stand_before_the_environments_prompt():
    """They may depend on the messages before the first reply, as in an episode, and not on later ones."""

    class Counting(MultiTurnAgent):
        def instructions(self, messages: Sequence[Message], context: Mapping[str, Any]) -> list[str]:
            return [f"{len(messages)} messages", ""]

    environment = cast(Environment, SimpleNamespace(system_prompt="desk"))
    conversation = with_agent_prompt((QUESTION, ANSWER, QUESTION, ANSWER), Counting(), environment)
    assert conversation == (Message(role="system", content="1 messages\n\ndesk"), QUESTION, ANSWER, QUESTION, ANSWER)
