"""Training data from corrections of served replies, with personal data redacted.

    correction          prompt S U1 A1 U2, reply A2, corrected C
    demonstration       S U1 A1 U2 C                            a line of `sft.demonstrations`, kind jsonl
    preference pair     prompt S U1 A1 U2, C above A2           a line of `dpo.pairs`, or of a `PairFile`

A correction is used only if the user's consent and the licence allow it. The texts of one conversation get the same
pseudonyms in all files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo.config.retraining import CurationSettings
from grpo.log.corrections import Correction, corrections
from grpo.log.join import Joined, scenario_id
from grpo.messages import Message, Tool
from grpo.scenarios.redaction import redact_messages
from grpo.scenarios.reward_data import PreferencePair
from grpo.storage.documents import Document
from grpo.storage.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedCorrection:
    """Correction without personal data."""

    pair: PreferencePair
    tools: tuple[Tool, ...]
    """Tools that the client offered, without the agent's own."""

    @property
    def demonstration(self) -> tuple[Message, ...]:
        """The conversation until the corrected reply, and the correction."""
        return (*self.pair.prompt, self.pair.chosen)


class CorrectionCounts(Document):
    """Counts of corrections: `corrections = used + sum(rejected)`."""

    corrections: int
    used: int
    rejected: dict[str, int]
    """By reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """Corrections that may be used, and the numbers of the other ones by reason."""

    used: tuple[RedactedCorrection, ...]
    rejected: Mapping[str, int]

    @property
    def counts(self) -> CorrectionCounts:
        """The numbers of both."""
        rejected = dict(sorted(self.rejected.items()))
        used = len(self.used)
        return CorrectionCounts(corrections=used + sum(rejected.values()), used=used, rejected=rejected)


def collect_corrections(
    joined: Iterable[Joined],
    settings: CurationSettings,
    *,
    trained: Container[str] | None = None,
    max_corrections: int | None = None,
) -> Corrections:
    """Filter the corrections in serving logs by licence and consent, and redact them.

    `trained` are the ids of the scenarios of the training split. If it is given, corrections of other conversations are
    not used, because these may be held out, or curation has rejected them. With `max_corrections` only the newest ones
    are used.
    """
    logs = tuple(joined)
    used: dict[str, RedactedCorrection] = {}
    rejected = Counter(item.reason for log in logs for item in log.quarantined if item.feedback.correction is not None)
    for correction in corrections(conversation for log in logs for conversation in log.conversations):
        reason = _reject(correction, settings)
        if reason is None and trained is not None and scenario_id(correction.conversation.id) not in trained:
            reason = "conversation not trained on"
        if reason is None and correction.turn_id in used:
            reason = "turn of a fork that was used"
        if reason is None:
            try:
                used[correction.turn_id] = _redact(correction)
            except ValidationError:
                reason = "invalid once redacted"
        if reason is not None:
            rejected[reason] += 1
    newest = tuple(used.values())[-max_corrections:] if max_corrections is not None else tuple(used.values())
    if len(newest) < len(used):
        rejected["older than the newest max_corrections"] = len(used) - len(newest)
    return Corrections(used=newest, rejected=dict(rejected))


def write_demonstrations(path: Path, used: Sequence[RedactedCorrection]) -> None:
    """Write a file for `sft.demonstrations`, with ids, so that an erasure finds the conversation."""
    _write(
        path,
        ({"id": item.pair.id, "messages": [message.to_template() for message in item.demonstration]} for item in used),
    )


def write_pairs(path: Path, used: Sequence[RedactedCorrection]) -> None:
    """Write a file for `dpo.pairs`: TRL's conversational preference format with tools, and id, group and category.

    A reward of preference pairs reads it with layout messages, and leaves out pairs with tool calls.
    """
    _write(
        path,
        (
            {
                "id": item.pair.id,
                "group": item.pair.group,
                "category": item.pair.category,
                "prompt": [message.to_template() for message in item.pair.prompt],
                "chosen": [item.pair.chosen.to_template()],
                "rejected": [item.pair.rejected.to_template()],
                "tools": [tool.to_template() for tool in item.tools],
            }
            for item in used
        ),
    )


def _reject(correction: Correction, settings: CurationSettings) -> str | None:
    turns, corrected = correction.conversation.turns, correction.corrected
    if not corrected.content.strip() and not corrected.tool_calls:
        return "empty"
    if (corrected.content, corrected.tool_calls) == (correction.reply.content, correction.reply.tool_calls):
        return "repeats the reply"
    if not {turn.licence for turn in turns} <= set(settings.licences):
        return "licence not allowed"
    if not {turn.consent for turn in turns} <= set(settings.consents):
        return "consent not allowed"
    offered = {tool["name"] for turn in turns for tool in turn.tools}
    calls = {call.name for call in corrected.tool_calls}
    return "call of an unknown tool" if offered and not calls <= offered else None


def _redact(correction: Correction) -> RedactedCorrection:
    last, messages = correction.conversation.turns[-1], (*correction.prompt, correction.reply, correction.corrected)
    *prompt, reply, corrected = redact_messages(scenario_id(correction.conversation.id), messages)
    pair = PreferencePair(
        id=f"correction-{correction.conversation.id}-{correction.turn_id}",
        group=last.conversation_id,
        prompt=tuple(prompt),
        category=last.metadata.get("category", "general"),
        source="served",
        licence=last.licence,
        chosen=corrected,
        rejected=reply,
    )
    return RedactedCorrection(pair=pair, tools=tuple(Tool(**tool) for tool in last.tools))


def _write(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
