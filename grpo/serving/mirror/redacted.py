"""Served turns and feedback with personal data redacted, for readers other than the service.

A text is redacted together with all earlier texts of its conversation, so that a name that a user gave in the first
turn is also redacted in the reply to the third one. If a name is first recognized in a later turn, it stays in the
texts that were redacted before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path

from grpo.log.folder import ServedLog, name_digest
from grpo.log.join import scenario_id
from grpo.log.records import Feedback, Record, ServedTurn
from grpo.messages import Message
from grpo.scenarios.redaction import redact_messages

_CONVERSATIONS = 10_000
"""Number of conversations kept in memory. Others are read from the log again."""


class Redaction:
    """Redaction of the records of one log by `redact`. The methods raise the errors of `redact`."""

    def __init__(
        self, folder: Path, redact: Callable[[str, Sequence[Message]], list[Message]] = redact_messages
    ) -> None:
        self._log, self._redact = ServedLog(folder), redact
        self._conversations: OrderedDict[str, dict[str, tuple[Message, ...]]] = OrderedDict()

    def prepare(self, records: Iterable[Record]) -> None:
        """Read the conversations of these records from the log, unless they are in memory or begin with the records."""
        missing = set()
        for record in records:
            turns = self._conversations.get(record.conversation_id, {})
            if isinstance(record, ServedTurn):
                missing |= {record.conversation_id} if record.parent not in (None, *turns) else set()
                self._add(record)
            elif not turns:
                missing.add(record.conversation_id)
        if missing:
            for name in missing:
                self._conversations.pop(name, None)
            for turn in self._log.turns_of(missing):
                self._add(turn)

    def messages(self, turn: ServedTurn) -> list[Message]:
        """Redacted messages of a turn that was prepared."""
        return self._redacted(turn.conversation_id, [part.message for part in turn.turns], until=turn.id)

    def feedback(self, feedback: Feedback) -> Feedback:
        """Feedback with redacted texts, without expected outcome and world, because these are records of a person."""
        comment = None if feedback.comment is None else Message(role="user", content=feedback.comment)
        given = [message for message in (comment, feedback.correction) if message is not None]
        clean = self._redacted(feedback.conversation_id, given)
        return replace(
            feedback,
            comment=clean[0].content if comment is not None else None,
            correction=clean[-1] if feedback.correction is not None else None,
            expected=None,
            world=None,
        )

    def first_turn(self, conversation_id: str) -> str | None:
        """Id of the first turn of a prepared conversation. None if the conversation is not in the log."""
        return next(iter(self._conversations.get(conversation_id, ())), None)

    def forget(self, digests: Set[str]) -> None:
        """Forget conversations by the digests of their ids."""
        for name in [name for name in self._conversations if name_digest(name) in digests]:
            del self._conversations[name]

    def _add(self, turn: ServedTurn) -> None:
        turns = self._conversations.setdefault(turn.conversation_id, {})
        turns[turn.id] = tuple(part.message for part in turn.turns)
        self._conversations.move_to_end(turn.conversation_id)
        while len(self._conversations) > _CONVERSATIONS:
            self._conversations.popitem(last=False)

    def _redacted(self, name: str, messages: Sequence[Message], *, until: str = "") -> list[Message]:
        """Redact messages that follow the turns of a conversation before `until`, or all its turns without `until`."""
        before: list[Message] = []
        for turn_id, earlier in self._conversations.get(name, {}).items():
            if turn_id == until:
                break
            before += earlier
        return self._redact(scenario_id(name), [*before, *messages])[len(before) :]
