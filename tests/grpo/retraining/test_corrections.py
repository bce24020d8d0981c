from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from grpo.config.retraining import CurationSettings
from grpo.config.rewards import PairFile
from grpo.config.sft import WrittenDemonstrations
from grpo.learner.demonstrations import read_demonstrations
from grpo.learner.trl.dpo_trainer import make_preference_pairs
from grpo.messages import Message, ToolCall
from grpo.policy.transformers.model import load
from grpo.renderers.chat_template import Renderer
from grpo.retraining.corrections import (
    Corrections,
    collect_corrections,
    preference_group,
    write_demonstrations,
    write_pairs,
)
from grpo.scenarios.reward_data import read_pair_file
from grpo.scenarios.served.join import join
from grpo.scenarios.served.records import Record
from grpo.trajectories import Turn
from tests.grpo.scenarios.served.fixtures import entries, feedback, turn

SETTINGS = CurationSettings(licences=("own",))
CORRECTED = feedback("f", turn_id="b", correction="Please write to anna@example.org.")


def spoken(*messages: Message) -> tuple[Turn, ...]:
    return tuple(Turn(message=message, start=0, stop=0) for message in messages)


def collect(*records: Record) -> Corrections:
    return collect_corrections(join(entries(*records)).conversations, SETTINGS)


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
    write_demonstrations(path, collect(*mail()).used)
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
    used = collect(turn("a", turns=spoken(*messages)), feedback("f", correction="Hello.")).used
    write_demonstrations(tmp_path / "d.jsonl", used)
    [read] = read_demonstrations(WrittenDemonstrations(kind="jsonl", path=str(tmp_path / "d.jsonl")))
    pseudonym = read[1].tool_calls[0].arguments["mail"]
    assert pseudonym.endswith("@example.com")
    assert read[0].content == f"I am {pseudonym}."
    assert write_pairs(tmp_path / "p.jsonl", used) == 0


def test_pairs_are_read_as_a_file_of_preference_pairs(tmp_path: Path):
    """The correction is preferred to the reply; pairs of a conversation are one group."""
    used = collect(*mail()).used
    assert write_pairs(tmp_path / "pairs.jsonl", used) == 1
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


def test_dpo_pairs_the_correction_with_the_reply(tiny_folder: Path):
    """The tokens of the last reply on each side, after the same prompt."""
    renderer = Renderer(load(tiny_folder).tokenizer)
    [item] = collect(*mail()).used
    group = preference_group(item.pair, renderer, policy_hash="policy")
    result = make_preference_pairs([group])
    assert (result.tied, result.unscored) == (0, 0)
    [pair] = result.pairs
    assert pair.prompt_ids.tolist() == [
        *renderer.build_prompt(item.pair.prompt[:1]),
        *renderer.encode_reply(item.pair.prompt[1]),
        *renderer.build_continuation(item.pair.prompt[:2], item.pair.prompt[2:], ended_by=renderer.stop_id),
    ]
    assert pair.chosen_ids.tolist() == renderer.encode_reply(item.pair.chosen)
    assert pair.rejected_ids.tolist() == renderer.encode_reply(item.pair.rejected)
    assert pair.chosen_mask.all()
    assert pair.rejected_mask.all()
    chosen = group.trajectories[0]
    assert np.isnan(chosen.sampler_logprobs[chosen.loss_mask]).all()


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


def test_an_empty_reply_is_not_half_of_a_pair(tmp_path: Path):
    """Its correction cannot be preferred to nothing."""
    empty = turn("a", turns=spoken(Message(role="user", content="Hi."), Message(role="assistant", content="")))
    assert collect(empty, feedback("f", correction="Hello.")).rejected == {"invalid once redacted": 1}


def test_a_file_of_demonstrations_is_json_lines(tmp_path: Path):
    """Letters outside of ASCII stay readable."""
    write_demonstrations(tmp_path / "d.jsonl", collect(turn("a"), feedback("f", correction="Grüße")).used)
    [line] = (tmp_path / "d.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][-1] == {"role": "assistant", "content": "Grüße"}
    assert "Grüße" in line
