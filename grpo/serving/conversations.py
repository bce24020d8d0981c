"""Conversations in memory: found again by id, or by the messages of a client that keeps no id.

client sends          known as
u1                    a new conversation
u1 a1 u2              the digest of (u1 a1) is that of an answered turn: its next turn
u1 a1 u2'             that turn has a successor already: a fork, a conversation of its own
u1 x u2               no turn has that digest: a new conversation, whose earlier messages are context
u1 a1 u2              two turns have that digest: ambiguous, so it is a new conversation as well

Texts are compared without white space around them. Ids of calls, which clients return, tell turns with calls apart.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from grpo.agents.transcript import TokenTranscript
from grpo.messages import Message, Tool
from grpo.serving.api_errors import APIError, invalid_request
from grpo.serving.chat_request import comparable, conversation_digest
from grpo.serving.chat_response import call_id

if TYPE_CHECKING:
    from grpo.serving.versions import ServedVersion

Joined = Literal["new", "id", "prefix", "fork", "unknown prefix", "ambiguous", "other version"]
"""Way in which a request was joined to its conversation."""


@dataclass(slots=True, kw_only=True, eq=False)
class AnsweredTurn:
    """Turn that was answered, from which its conversation goes on."""

    turn_id: str
    conversation_id: str
    owner: str
    user: str | None
    version: ServedVersion | None
    """Version that answers it; None once that is retired."""
    tools: tuple[Tool, ...]
    messages: tuple[Message, ...]
    """The conversation as the client knows it, the reply last."""
    transcript: TokenTranscript | None
    """Tokens of the conversation; None once its version is retired."""
    earlier_calls: frozenset[str] = frozenset()
    """Ids of the calls in the replies before, as the client knows them."""
    strategy: str | None = None
    """Strategy of the agent, which the conversation began with."""
    in_progress: int = 0
    """Requests that go on from this turn."""
    successors: int = 0
    """Answered turns that follow."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.digest = conversation_digest(self.owner, self.user, _described(self.tools), self.messages, self.calls)

    @property
    def version_runs(self) -> bool:
        """True while its version is loaded, and its engine runs."""
        return self.version is not None and self.version.stopped is None

    @property
    def served_by(self) -> ServedVersion:
        """Version that answers it, while it is loaded."""
        assert self.version is not None
        return self.version

    @property
    def tokens(self) -> TokenTranscript:
        """Tokens of the conversation, while its version is loaded."""
        assert self.transcript is not None
        return self.transcript

    @property
    def size(self) -> int:
        """Number of its tokens in memory."""
        return 0 if self.transcript is None else len(self.transcript.ids)

    @property
    def call_ids(self) -> list[str]:
        """Ids of the calls in the reply, whose results the client owes."""
        return [call_id(self.turn_id, position) for position in range(len(self.messages[-1].tool_calls))]

    @property
    def calls(self) -> frozenset[str]:
        """Ids of all calls of the conversation."""
        return self.earlier_calls.union(self.call_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Place of a request: its conversation, the turn before, and the messages that are new."""

    conversation_id: str
    before: AnsweredTurn | None
    new: tuple[Message, ...]
    history: tuple[Message, ...]
    """The conversation as the client knows it, without the reply to come."""
    joined: Joined


class Conversations:
    """Answered turns of a server, the least recently used dropped above `max_tokens` of all together."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._turns: OrderedDict[str, AnsweredTurn] = OrderedDict()
        self._by_digest: dict[str, list[str]] = {}
        self._repeated: set[str] = set()
        """Digests that several turns had, of which some may be dropped."""
        self._last: dict[str, str] = {}
        """Last turn of each conversation."""

    def __len__(self) -> int:
        return len(self._turns)

    def last_turn(self, conversation_id: str | None, owner: str) -> AnsweredTurn | None:
        """Last turn of a conversation of this owner."""
        turn = self._turns.get(self._last.get(conversation_id or "", ""))
        return turn if turn is not None and turn.owner == owner else None

    def find(
        self,
        messages: tuple[Message, ...],
        *,
        conversation_id: str | None,
        owner: str,
        user: str | None,
        tools: tuple[Tool, ...],
        calls: frozenset[str] = frozenset(),
    ) -> Continuation:
        """Find the turn that a request continues; raises `APIError` for an unknown id or changed tools.

        `calls` are the ids of the calls in its messages.
        """
        if conversation_id is not None:
            return self._by_id(messages, conversation_id, owner=owner, tools=tools)
        last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=None)
        if last is None:
            return _new(messages, "new")
        digest = conversation_digest(owner, user, _described(tools), messages[: last + 1], calls)
        known = self._by_digest.get(digest, ())
        if not known or digest in self._repeated:
            return _new(messages, "ambiguous" if known else "unknown prefix")
        before = self._turns[known[0]]
        self._turns.move_to_end(before.turn_id)
        if not before.version_runs:
            return _new(messages, "other version", before.conversation_id)
        return Continuation(
            conversation_id=before.conversation_id,
            before=before,
            new=messages[last + 1 :],
            history=messages,
            joined="fork" if before.in_progress or before.successors else "prefix",
        )

    def _by_id(
        self,
        messages: tuple[Message, ...],
        conversation_id: str,
        *,
        owner: str,
        tools: tuple[Tool, ...],
    ) -> Continuation:
        """The last turn of a conversation; `messages` are the new ones, or the whole conversation with them."""
        before = self.last_turn(conversation_id, owner)
        if before is None:
            raise APIError(
                404,
                f"no conversation {conversation_id!r}; leave conversation_id out and send the whole conversation",
                param="conversation_id",
                code="conversation_not_found",
            )
        if before.in_progress:
            message = f"a turn of conversation {conversation_id} is in progress; wait for its end"
            raise APIError(409, message, param="conversation_id", code="conversation_busy")
        if _described(before.tools) != _described(tools):
            raise invalid_request(
                f"conversation {conversation_id} began with other tools; start another conversation", param="tools"
            )
        known = len(before.messages)
        whole = len(messages) > known and comparable(messages[:known]) == comparable(before.messages)
        new = messages[known:] if whole else messages
        if any(message.role in ("assistant", "system") for message in new):
            raise invalid_request(
                f"messages are neither new ones of conversation {conversation_id} nor the whole of it", param="messages"
            )
        history = (*before.messages, *new)
        self._turns.move_to_end(before.turn_id)
        if not before.version_runs:
            return _new(history, "other version", conversation_id)
        return Continuation(conversation_id=conversation_id, before=before, new=new, history=history, joined="id")

    def add(self, turn: AnsweredTurn, *, is_last: bool) -> None:
        """Remember an answered turn, and drop the least recently used ones that are too many.

        `is_last` for the turn that a request with the conversation's id continues.
        """
        self._turns[turn.turn_id] = turn
        self._tokens += turn.size
        if is_last:
            self._last[turn.conversation_id] = turn.turn_id
        alike = self._by_digest.setdefault(turn.digest, [])
        alike.append(turn.turn_id)
        if len(alike) > 1:
            self._repeated.add(turn.digest)
        while self._tokens > self._max_tokens and len(self._turns) > 1:
            self._forget(next(iter(self._turns.values())))

    def erase(self, *, user: str | None = None, conversation_id: str | None = None) -> None:
        """Forget one conversation, or those with a turn of a user."""
        names = {turn.conversation_id for turn in self._turns.values() if user is not None and turn.user == user}
        for turn in tuple(self._turns.values()):
            if turn.conversation_id in names or turn.conversation_id == conversation_id:
                self._forget(turn)

    def retire(self, version: ServedVersion) -> None:
        """Let go of the tokens and the model of a version; the messages of its conversations stay."""
        for turn in self._turns.values():
            if turn.version is version:
                self._tokens -= turn.size
                turn.version = turn.transcript = None

    def _forget(self, turn: AnsweredTurn) -> None:
        del self._turns[turn.turn_id]
        self._tokens -= turn.size
        if self._last.get(turn.conversation_id) == turn.turn_id:
            del self._last[turn.conversation_id]
        others = self._by_digest[turn.digest]
        others.remove(turn.turn_id)
        if not others:
            del self._by_digest[turn.digest]
            self._repeated.discard(turn.digest)


def _new(messages: tuple[Message, ...], joined: Joined, conversation_id: str | None = None) -> Continuation:
    name = conversation_id or uuid.uuid4().hex
    return Continuation(conversation_id=name, before=None, new=messages, history=messages, joined=joined)


def _described(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    return [tool.to_template() for tool in tools]
