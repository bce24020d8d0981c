from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo.config.scenarios import ServedSource
from grpo.log.folder import ServedLog
from grpo.log.records import Record
from grpo.log.writer import ServingLog
from grpo.messages import Message, ToolCall
from grpo.scenario import Expected, Scenario
from grpo.scenarios.sources import content_hash, read_records
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn, write_segment


def write(folder: Path, *records: Record) -> None:
    async def main() -> None:
        async with ServingLog(folder) as log:
            for record in records:
                await log.append(record)

    asyncio.run(main())


def source(folder: Path, **settings: Any) -> ServedSource:
    return ServedSource(kind="served", path=str(folder), **settings)


def messages(*parts: Message) -> tuple[Turn, ...]:
    return tuple(Turn(message=part, start=0, stop=0) for part in parts)


LOOK_UP = Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "7"}),))
OPENING = (
    Message(role="system", content="You run the order desk."),
    Message(role="user", content="Where is order 7?"),
    LOOK_UP,
)
RESULT = (Message(role="tool", content='{"state": "lost"}'), Message(role="assistant", content="It is lost."))


def test_a_conversation_becomes_a_scenario_with_its_recorded_calls(tmp_path: Path):
    """Two turns: the client answers a call. Replies are not references; the outcome is that of the feedback."""
    expected = Expected(calls=({"name": "refund", "arguments": {"order": "7"}},))
    write(
        tmp_path,
        turn("a", turns=messages(*OPENING), tools=({"name": "look_up", "description": "d", "parameters": {}},)),
        turn("b", "a", turns=messages(*RESULT), metadata={"category": "missing", "domain": "customer_service"}),
        feedback("f", expected=expected),
    )
    [record] = read_records(source(tmp_path))
    scenario = Scenario.model_validate(record.data)
    assert scenario.id == "conversation-c"
    assert scenario.context == "You run the order desk."
    assert scenario.user_responses == ("Where is order 7?",)
    assert scenario.world == {
        "recorded": [{"name": "look_up", "arguments": {"order": "7"}, "turn": 0, "result": {"state": "lost"}}]
    }
    assert [tool["name"] for tool in scenario.tools] == ["look_up"]
    assert scenario.expected == expected
    assert (scenario.domain, scenario.metadata.category) == ("customer_service", "missing")
    assert (scenario.metadata.source, scenario.metadata.consent, scenario.metadata.licence) == (
        "served",
        "training",
        "own",
    )


def test_the_records_of_the_feedback_are_the_world(tmp_path: Path):
    """They replace the recorded calls: the agent's tools run on them."""
    write(tmp_path, turn("a", turns=messages(*OPENING, *RESULT)), feedback("f", world={"orders": {"7": "lost"}}))
    [record] = read_records(source(tmp_path))
    assert Scenario.model_validate(record.data).world == {"orders": {"7": "lost"}}


@pytest.mark.parametrize("given", [(), ("I looked: it is lost.",)])
def test_a_corrected_reply_is_a_reference_unless_feedback_gave_one(tmp_path: Path, given: tuple[str, ...]):
    """The text of the correction, which a teacher may read as a hint."""
    correction = Message(role="assistant", content="It is lost. I send another one.")
    expected = Expected(responses=given)
    write(
        tmp_path, turn("a", turns=messages(*OPENING, *RESULT)), feedback("f", correction=correction, expected=expected)
    )
    [record] = read_records(source(tmp_path))
    assert Scenario.model_validate(record.data).expected.responses == (given or (correction.content,))


def test_a_call_at_the_end_is_left_out(tmp_path: Path):
    """The client did not answer it."""
    write(tmp_path, turn("a", turns=messages(*OPENING)))
    [record] = read_records(source(tmp_path))
    assert Scenario.model_validate(record.data).world == {}


def test_the_user_may_become_a_goal(tmp_path: Path):
    """The setting `users`."""
    write(tmp_path, turn("a"), turn("b", "a"))
    [record] = read_records(source(tmp_path, users="goal"))
    assert Scenario.model_validate(record.data).goal == "Reason: Question a?\nKnown: Question b?"


def test_a_conversation_that_is_not_a_scenario_is_a_record_with_a_problem(tmp_path: Path):
    """A user who does not come to speak, and the damaged line. The scenario itself refuses an unknown domain."""
    write_segment(
        tmp_path,
        replace(turn("a"), metadata={"domain": "moon"}),
        replace(turn("b"), conversation_id="d", turns=messages(Message(role="assistant", content="Hello."))),
        replace(turn("e"), conversation_id="e"),
        damage=b"damage\n",
    )
    records = list(read_records(source(tmp_path)))
    with pytest.raises(ValidationError, match="domain\n  Input should be"):
        Scenario.model_validate(records[0].data)
    problems = [record.problem or "" for record in records]
    assert problems[1:3] == ["not a conversation: no user turn: a scenario needs one", ""]
    assert problems[3].startswith("damaged record: the checksum differs, line 4")


def test_a_pinned_log_does_not_grow(tmp_path: Path):
    """Turns that come while a retraining reads belong to the next one; the identity names the snapshot."""
    write(tmp_path, turn("a"))
    pinned, everything = source(tmp_path, segments=ServedLog(tmp_path).snapshot()), source(tmp_path)
    before = content_hash([pinned]), content_hash([everything])
    write(tmp_path, replace(turn("x"), conversation_id="d"))
    assert len(list(read_records(pinned))) == 1
    assert len(list(read_records(everything))) == 2
    assert content_hash([pinned]) == before[0]
    assert content_hash([everything]) != before[1]


def test_a_log_without_a_folder_is_empty(tmp_path: Path):
    """Nothing was served yet."""
    assert list(read_records(source(tmp_path / "none"))) == []
