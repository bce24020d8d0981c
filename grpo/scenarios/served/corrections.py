"""Corrections of replies that were served.

    turns          S U1 A1 U2 A2, correction C of A2
    correction     prompt S U1 A1 U2, reply A2, corrected C

A correction of a whole conversation is one of its last reply. They become training data in
`grpo.retraining.corrections`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grpo.messages import Message
from grpo.scenarios.served.join import ServedConversation


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A reply and the one that it should have been."""

    conversation: ServedConversation
    turn_id: str
    prompt: tuple[Message, ...]
    """Messages before the reply."""
    reply: Message
    corrected: Message


def corrections(conversations: Iterable[ServedConversation]) -> Iterator[Correction]:
    """All corrections of replies, in the order of conversations and turns.

    A turn with calls of the agent's own tools has several replies: its correction is that of the last.
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
