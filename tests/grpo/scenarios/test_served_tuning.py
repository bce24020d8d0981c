from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from grpo.config.dpo import WrittenPairs
from grpo.config.retraining import CurationSettings
from grpo.config.rewards import PairFile
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.offline.demonstrations import read_demonstrations
from grpo.learner.offline.preferences import read_pairs
from grpo.log.join import join
from grpo.log.records import Record
from grpo.messages import Message, Tool, ToolCall
from grpo.scenarios.reward_data import read_pair_file
from grpo.scenarios.served_tuning import (
    Corrections,
    RedactedDemonstration,
    collect_corrections,
    write_demonstrations,
    write_pairs,
)
from grpo.trajectories import Turn
from tests.grpo.log.fixtures import feedback, turn

SETTINGS = CurationSettings(licences=("own",))
CORRECTED = feedback("f", turn_id="b", correction="Please write to anna@example.org.")


def spoken(*messages: Message) -> tuple[Turn, ...]:
    return tuple(Turn(message=message, start=0, stop=0) for message in messages)


def collect(*records: Record) -> Corrections:
    return collect_corrections([join(records)], SETTINGS)


def demonstrations(corrections: Corrections) -> list[RedactedDemonstration]:
    return [item.demonstration for item in corrections.used]


def mail() -> list[Record]:
    """Two turns with an address of mail, which the correction repeats."""
    first = turn(
        "a",
        turns=spoken(Message(role="user", content="I am anna@example.org."), Message(role="assistant", content="Hi.")),
    )
    return [first, turn("b", "a"), CORRECTED]


def test_demonstrations_are_read_by_fine_tuning_without_personal_data(tmp_path: Path):
    """The conversation until the corrected reply; an address has one placeholder in all messages."""
    path = tmp_path / "demonstrations.jsonl"
    write_demonstrations(path, demonstrations(collect(*mail())))
    [messages] = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(path)))
    assert [message.content for message in messages] == [
        "I am [email].",
        "Hi.",
        "Question b?",
        "Please write to [email].",
    ]
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]


def test_calls_stay_calls_in_demonstrations(tmp_path: Path):
    """An address in a call has the pseudonym of the texts."""
    call = Message(
        role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"mail": "anna@example.org"}),)
    )
    messages = (
        Message(role="user", content="I am anna@example.org."),
        call,
        Message(role="tool", content="{}"),
        Message(role="assistant", content="Hi."),
    )
    used = collect(turn("a", turns=spoken(*messages)), feedback("f", correction="Hello."))
    write_demonstrations(tmp_path / "d.jsonl", demonstrations(used))
    [read] = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(tmp_path / "d.jsonl")))
    pseudonym = read[1].tool_calls[0].arguments["mail"]
    assert pseudonym.endswith("@example.com")
    assert read[0].content == f"I am {pseudonym}."


def test_pairs_are_read_as_a_file_of_preference_pairs(tmp_path: Path):
    """The correction is preferred to the reply; pairs of a conversation are one group."""
    used = collect(*mail()).used
    write_pairs(tmp_path / "pairs.jsonl", used)
    settings = PairFile(
        kind="jsonl", path=str(tmp_path / "pairs.jsonl"), layout="messages", id="id", group="group",
        category="category", licence="own",
    )  # fmt: skip
    read = read_pair_file(settings)
    assert read.quarantined == ()
    [pair] = read.items
    assert (pair.id, pair.group) == ("correction-c-b", "c")
    assert (pair.chosen.content, pair.rejected.content) == ("Please write to [email].", "Answer b.")
    assert [message.content for message in pair.prompt] == ["I am [email].", "Hi.", "Question b?"]


def test_pairs_are_read_by_dpo_with_their_tools(tmp_path: Path):
    """A call of the prompt stays a call, and the tools are those that the client offered."""
    messages = (
        Message(role="user", content="Where is it?"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="look_up", arguments={"order": "17"}),)),
        Message(role="tool", content="{}"),
        Message(role="assistant", content="Hi."),
    )
    tool = {"name": "look_up", "description": "Look up.", "parameters": {"type": "object"}}
    used = collect(turn("a", turns=spoken(*messages), tools=(tool,)), feedback("f", correction="Lost.")).used
    write_pairs(tmp_path / "pairs.jsonl", used)
    [pair] = read_pairs(WrittenPairs(kind="jsonl", path=str(tmp_path / "pairs.jsonl")))
    assert pair.prompt == messages[:3]
    assert (pair.chosen.content, pair.rejected.content) == ("Lost.", "Hi.")
    assert pair.tools == (Tool(**tool),)


def test_a_correction_that_repeats_the_reply_is_counted():
    """So is an empty one: neither is better than the reply."""
    for text, reason in (("Answer a.", "repeats the reply"), (" ", "empty")):
        result = collect(turn("a"), feedback("f", correction=text))
        assert (result.used, result.rejected) == ((), {reason: 1})


def test_a_correction_of_a_turn_that_is_not_in_the_log_is_counted():
    """By the reason of the join."""
    unknown = feedback("f", turn_id="z", correction="No.")
    result = collect(turn("a"), unknown, feedback("g", turn_id="z", rating=0.0))
    assert result.counts.model_dump() == {"corrections": 1, "used": 0, "rejected": {"unknown turn": 1}}


def test_a_corrected_turn_of_two_forks_is_trained_on_once():
    """Both conversations have it."""
    result = collect(turn("a"), turn("b", "a"), turn("c", "a"), feedback("f", turn_id="a", correction="No."))
    assert (len(result.used), result.rejected) == (1, {"turn of a fork that was used": 1})


def test_the_newest_corrections_are_used():
    """Of three, the last two conversations."""
    records: list[Record] = []
    for name in "abc":
        records += [
            replace(turn(name), conversation_id=name),
            feedback(f"on {name}", conversation_id=name, correction=f"Better {name}."),
        ]
    joined = join(records)
    result = collect_corrections([joined], SETTINGS, max_corrections=2)
    assert [item.pair.chosen.content for item in result.used] == ["Better b.", "Better c."]
    assert result.counts.rejected == {"older than the newest max_corrections": 1}


def test_corrections_without_consent_or_licence_are_counted():
    """No text of theirs is kept."""
    without = [replace(turn("a"), consent=""), feedback("f", correction="No.")]
    other = [
        replace(turn("a"), id="x", conversation_id="d", licence="CC"),
        feedback("g", correction="No.", conversation_id="d"),
    ]
    result = collect(*without, *other)
    assert result.used == ()
    assert result.rejected == {"consent not allowed": 1, "licence not allowed": 1}


def test_a_call_of_a_tool_that_was_not_offered_is_not_learned():
    """If the client offered no tools, a call of any tool is learned."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(name="refund", arguments={}),))
    for offered, used in ((({"name": "refund"},), 1), (({"name": "replace"},), 0), ((), 1)):
        result = collect(turn("a", tools=offered), feedback("f", correction=call))
        assert len(result.used) == used
        assert result.rejected == ({} if used else {"call of an unknown tool": 1})


def test_an_empty_reply_is_not_half_of_a_pair(tmp_path: Path):
    """Its correction cannot be preferred to nothing."""
    empty = turn("a", turns=spoken(Message(role="user", content="Hi."), Message(role="assistant", content="")))
    assert collect(empty, feedback("f", correction="Hello.")).rejected == {"invalid once redacted": 1}


def test_a_file_of_demonstrations_is_json_lines(tmp_path: Path):
    """Letters outside of ASCII stay readable."""
    write_demonstrations(tmp_path / "d.jsonl", demonstrations(collect(turn("a"), feedback("f", correction="Grüße"))))
    [line] = (tmp_path / "d.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][-1] == {"role": "assistant", "content": "Grüße"}
    assert "Grüße" in line
