"""Training data from corrections of served replies, with personal data redacted.

    correction          prompt S U1 A1 U2, reply A2, corrected C
    demonstration       S U1 A1 U2 C                            a line of `sft.demonstrations`, kind jsonl
    preference pair     prompt S U1 A1 U2, C above A2           a line of a `PairFile` with layout messages
    group               tokens of C and A2 with rewards 1 and 0      what DPO pairs

Without the user's consent and the licence a correction is not used. One conversation gets the same pseudonyms in all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from grpo.config.retraining import CurationSettings
from grpo.messages import Message, ToolCall
from grpo.renderers.chat_template import Renderer
from grpo.retraining.redaction import Redacted
from grpo.scenarios.reward_data import PreferencePair
from grpo.scenarios.scenario import Expected, Scenario
from grpo.scenarios.served.corrections import Correction, corrections
from grpo.scenarios.served.join import ServedConversation, scenario_id
from grpo.storage.documents import Document
from grpo.storage.files import write_atomically
from grpo.trajectories import Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedCorrection:
    """Correction without personal data."""

    pair: PreferencePair
    demonstration: tuple[Message, ...]


class CorrectionCounts(Document):
    """Counts of corrections: `corrections = used + sum(rejected)`."""

    corrections: int
    used: int
    rejected: dict[str, int]
    """By reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """Corrections that may be used, and the number of the others by reason."""

    used: tuple[RedactedCorrection, ...]
    rejected: Mapping[str, int]

    @property
    def counts(self) -> CorrectionCounts:
        """The numbers of both."""
        rejected = dict(sorted(self.rejected.items()))
        used = len(self.used)
        return CorrectionCounts(corrections=used + sum(rejected.values()), used=used, rejected=rejected)


def collect_corrections(
    conversations: Iterable[ServedConversation], settings: CurationSettings, *, trained: Container[str] | None = None
) -> Corrections:
    """Filter the corrections of served conversations by licence and consent, and redact them.

    `trained` are the ids of the scenarios of the training split: a correction of another conversation is not used,
    because it may be held out, or was refused by curation. None uses those of all conversations.
    """
    used, rejected = [], Counter[str]()
    for correction in corrections(conversations):
        reason = _reject(correction, settings)
        if reason is None and trained is not None and scenario_id(correction.conversation.id) not in trained:
            reason = "conversation not trained on"
        if reason is None:
            try:
                used.append(_redact(correction))
            except ValidationError:
                reason = "invalid once redacted"
        if reason is not None:
            rejected[reason] += 1
    return Corrections(used=tuple(used), rejected=dict(rejected))


def write_demonstrations(path: Path, used: Sequence[RedactedCorrection]) -> None:
    """Write a file for `sft.demonstrations`."""
    _write(path, ({"messages": [message.to_template() for message in item.demonstration]} for item in used))


def write_pairs(path: Path, used: Sequence[RedactedCorrection]) -> int:
    """Write a file of preference pairs, columns id, group, category, prompt, chosen, rejected; returns their number.

    The format has texts alone: pairs with a tool call in their prompt or replies are left out.
    """
    pairs = [item.pair for item in used if not any(message.tool_calls for message in _messages(item.pair))]
    _write(
        path,
        (
            {
                "id": pair.id,
                "group": pair.group,
                "category": pair.category,
                "prompt": [message.to_template() for message in pair.prompt],
                "chosen": [pair.chosen.to_template()],
                "rejected": [pair.rejected.to_template()],
            }
            for pair in pairs
        ),
    )
    return len(pairs)


def preference_group(pair: PreferencePair, renderer: Renderer, *, policy_hash: str) -> TrajectoryGroup:
    """Both sides of a pair as trajectories with rewards 1 and 0, the loss on the last reply alone.

    Log-probabilities are NaN: DPO computes its own.
    """
    sides = ((0, pair.chosen, 1.0), (1, pair.rejected, 0.0))
    trajectories = tuple(
        _trajectory(pair, reply, renderer, sample=sample, reward=reward, policy_hash=policy_hash)
        for sample, reply, reward in sides
    )
    return TrajectoryGroup(scenario_id=pair.id, trajectories=trajectories)


def _trajectory(
    pair: PreferencePair, reply: Message, renderer: Renderer, *, sample: int, reward: float, policy_hash: str
) -> Trajectory:
    ids, _ = renderer.tokenize_conversation((*pair.prompt, reply))
    count = len(renderer.encode_reply(reply, pair.prompt))
    start = len(ids) - count
    mask = np.arange(len(ids)) >= start
    prompt = [Turn(message=message, start=start, stop=start) for message in pair.prompt]
    return Trajectory(
        scenario_id=pair.id,
        scenario_hash="",
        category=pair.category,
        difficulty="unknown",
        sample=sample,
        seed=0,
        policy_hash=policy_hash,
        renderer_hash=renderer.hash,
        temperature=1.0,
        turns=(*prompt, Turn(message=reply, start=start, stop=len(ids))),
        token_ids=np.asarray(ids, np.int32),
        loss_mask=mask,
        sampler_logprobs=np.where(mask, np.nan, 0).astype(np.float32),
        stop="terminated",
        terminal_reward=reward,
    )


def _reject(correction: Correction, settings: CurationSettings) -> str | None:
    turns = correction.conversation.turns
    if not {turn.licence for turn in turns} <= set(settings.licences):
        return "licence not allowed"
    return None if {turn.consent for turn in turns} <= set(settings.consents) else "consent not allowed"


def _redact(correction: Correction) -> RedactedCorrection:
    last, messages = correction.conversation.turns[-1], (*correction.prompt, correction.reply, correction.corrected)
    *prompt, reply, corrected = _redacted(scenario_id(correction.conversation.id), messages)
    pair = PreferencePair(
        id=f"correction-{correction.conversation.id}-{correction.turn_id}",
        group=correction.conversation.turns[0].conversation_id,
        prompt=tuple(prompt),
        category=last.metadata.get("category", "general"),
        source="served",
        licence=last.licence,
        chosen=corrected,
        rejected=reply,
    )
    return RedactedCorrection(pair=pair, demonstration=(*prompt, corrected))


def _redacted(name: str, messages: Sequence[Message]) -> list[Message]:
    """Messages with the pseudonyms of one scenario; values in calls keep their form."""
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for part in messages for call in part.tool_calls]
    texts = tuple(message.content for message in messages)
    scenario = Scenario(id=name, goal="-", expected=Expected(responses=texts, calls=tuple(calls)))
    expected = Redacted(scenario).scenario.expected
    remaining = iter(expected.calls)
    redacted = []
    for message, text in zip(messages, expected.responses, strict=True):
        own = [next(remaining) for _ in message.tool_calls]
        part = tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in own)
        redacted.append(Message(role=message.role, content=text, tool_calls=part))
    return redacted


def _messages(pair: PreferencePair) -> tuple[Message, ...]:
    return (*pair.prompt, pair.chosen, pair.rejected)


def _write(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
