"""Demonstrations and preference pairs from serving logs, with personal data redacted.

    correction          prompt S U1 A1 U2, reply A2, corrected C
    demonstration       S U1 A1 U2 C                            a line of `sft.demonstrations`, kind jsonl
    preference pair     prompt S U1 A1 U2, C above A2           a line of `dpo.pairs`, or of a `PairFile`
    success             S U1 A1 U2 A2 is a demonstration        for `sft.demonstrations`, kind served

A conversation is used only if the user's consent and the licence allow it. The texts of one conversation get the same
pseudonyms in all files. The logged tokens are not used, because they still have the personal data: the redacted texts
are rendered and tokenized again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo.config.served_log import AllowedUse
from grpo.config.sft import ServedDemonstrations
from grpo.log.corrections import Correction, corrections
from grpo.log.join import Joined, ServedConversation, scenario_id
from grpo.messages import Message, Tool
from grpo.scenarios.redaction import redact_messages
from grpo.scenarios.reward_data import PreferencePair
from grpo.storage.documents import Document
from grpo.storage.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedDemonstration:
    """Conversation without personal data that ends with a reply to imitate."""

    id: str
    """Id that names the conversation, so that an erasure finds its copies."""
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedCorrection:
    """Correction without personal data."""

    pair: PreferencePair
    tools: tuple[Tool, ...]
    """Tools that the client offered, without the agent's own."""

    @property
    def demonstration(self) -> RedactedDemonstration:
        """The conversation until the corrected reply, and the correction."""
        return RedactedDemonstration(id=self.pair.id, messages=(*self.pair.prompt, self.pair.chosen))


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
    settings: AllowedUse,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """Demonstrations of a log, and the numbers of the other conversations and corrections by reason."""

    used: tuple[RedactedDemonstration, ...]
    rejected: Mapping[str, int]


def collect_demonstrations(joined: Joined, settings: ServedDemonstrations) -> Demonstrations:
    """Demonstrations of a log: corrections, and conversations that succeeded and in which nothing was corrected.

    Both are filtered by licence and consent, and redacted. Conversations come in the order of the log, before the
    corrections.
    """
    corrected = {correction.conversation.id for correction in corrections(joined.conversations)}
    used: list[RedactedDemonstration] = []
    rejected: Counter[str] = Counter()
    for conversation in joined.conversations:
        if conversation.id in corrected:
            continue
        reason = _reject_demonstration(conversation, settings)
        if reason is None:
            name = scenario_id(conversation.id)
            try:
                messages = redact_messages(name, conversation.messages)
                used.append(RedactedDemonstration(id=name, messages=tuple(messages)))
            except ValidationError:
                reason = "invalid once redacted"
        if reason is not None:
            rejected[reason] += 1
    collected = collect_corrections([joined], settings)
    used += [item.demonstration for item in collected.used]
    return Demonstrations(used=tuple(used), rejected=rejected + Counter(collected.rejected))


def _reject_demonstration(conversation: ServedConversation, settings: ServedDemonstrations) -> str | None:
    success, rating = conversation.judgement.success, conversation.judgement.rating
    least = settings.min_rating
    is_liked = success is None and rating is not None and least is not None and rating >= least
    if not success and not is_liked:
        return "no success"
    if (reason := _reject_use(conversation, settings)) is not None:
        return reason
    roles = [message.role for message in conversation.messages]
    if "user" not in roles[: roles.index("assistant")]:
        return "begins with a reply"
    replies = [message for message in conversation.messages if message.role == "assistant"]
    if any(not reply.content.strip() and not reply.tool_calls for reply in replies):
        return "empty reply"
    return None


def write_demonstrations(path: Path, used: Iterable[RedactedDemonstration]) -> None:
    """Write a file for `sft.demonstrations`, with ids, so that an erasure finds the conversation."""
    _write(path, ({"id": item.id, "messages": [part.to_template() for part in item.messages]} for item in used))


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


def _reject_use(conversation: ServedConversation, settings: AllowedUse) -> str | None:
    """Reason why a conversation may not be trained on, or None."""
    if not {turn.licence for turn in conversation.turns} <= set(settings.licences):
        return "licence not allowed"
    if not {turn.consent for turn in conversation.turns} <= set(settings.consents):
        return "consent not allowed"
    return None


def _reject(correction: Correction, settings: AllowedUse) -> str | None:
    turns, corrected = correction.conversation.turns, correction.corrected
    if not corrected.content.strip() and not corrected.tool_calls:
        return "empty"
    if (corrected.content, corrected.tool_calls) == (correction.reply.content, correction.reply.tool_calls):
        return "repeats the reply"
    if (reason := _reject_use(correction.conversation, settings)) is not None:
        return reason
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
