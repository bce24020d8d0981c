"""Corrections of replies that were served.

    turns          S U1 A1 U2 A2, correction C of A2
    correction     prompt S U1 A1 U2, reply A2, corrected C

A correction of a whole conversation is taken as a correction of its last reply. `grpo.scenarios.served_tuning` makes
training data from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo.log.join import ServedConversation
from grpo.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A reply, and the reply that should have been given instead."""

    conversation: ServedConversation
    turn_id: str
    prompt: tuple[Message, ...]
    """Messages before the reply."""
    reply: Message
    corrected: Message


def corrections(conversations: Iterable[ServedConversation]) -> Iterator[Correction]:
    """All corrections of replies, in the order of conversations and turns.

    If a turn has several replies, because the agent called its own tools, the correction is of the last reply.
    """
    for conversation in conversations:
        prompt: list[Message] = []
        for turn in conversation.turns:
            *before, reply = (part.message for part in turn.turns)
            judgement = conversation.turn_judgements.get(turn.id)
            corrected = judgement.correction if judgement is not None else None
            if corrected is None and turn is conversation.turns[-1]:
                corrected = conversation.judgement.correction
            if corrected is not None:
                yield Correction(
                    conversation=conversation,
                    turn_id=turn.id,
                    prompt=(*prompt, *before),
                    reply=reply,
                    corrected=corrected,
                )
            prompt += [*before, reply]
