"""Store of answered turns outside the memory of one server.

A single server has none (`OneServer`). Several servers share the one in `grpo.serving.shared.conversations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from grpo.log.records import Erasure
from grpo.serving.requests.answered_turns import AnsweredTurn, Continuation
from grpo.serving.requests.digests import DigestedMessages, DigestedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTurns:
    """Turns that a request may go on from, after they were brought into memory."""

    turns: tuple[AnsweredTurn, ...] = ()
    ambiguous: frozenset[str] = frozenset()
    """Digests that more than one turn has, so that a request cannot be joined by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Request that may go on, with its place."""

    place: Continuation
    lease: UUID | None = None
    """Lease on the turn that the request continues, or on its conversation, and on its answer until that is sent."""


class TurnStore(Protocol):
    """Store of answered turns. `Conversations` is its cache. Raises `APIError` 503 if the store does not answer."""

    @property
    def away(self) -> str | None:
        """Reason if the store does not answer. None while it answers."""
        ...

    @property
    def servers(self) -> int:
        """Number of servers that share the store."""
        ...

    async def load_last(self, conversation_id: str, owner: str, asked: DigestedMessages | None = None) -> None:
        """Bring the last turn of a conversation into memory, or forget it there if the store does not have it.

        If the turn's server was killed before it sent the answer, and `asked` is the same request again, the turn is
        undone.
        """
        ...

    async def load_turn(self, turn_id: str, owner: str) -> None:
        """Bring a turn into memory, or forget it there if the store does not have it."""
        ...

    async def load_prefix(
        self, asked: DigestedMessages, owner: str, user: str | None, tools: DigestedTools | None
    ) -> LoadedTurns:
        """Bring the turns that messages may continue into memory. `tools` is None if the client sends none."""
        ...

    async def begin(self, place: Continuation, owner: str, *, by_id: bool) -> Begun | None:
        """Begin a request at its place. None if the place has to be looked up again.

        That is the case if the turn there is gone or, with `by_id`, if another turn has followed it. `by_id` means that
        the request names its conversation. Then `APIError` 409 is raised if a turn of the conversation is in progress.
        """
        ...

    async def commit(self, turn: AnsweredTurn, place: Continuation, lease: UUID | None, *, is_last: bool) -> None:
        """Keep an answered turn. Raises `APIError` 409 if another turn was answered in its place."""
        ...

    def release(self, lease: UUID | None) -> None:
        """End a request after its answer was sent, or after its client has gone."""
        ...

    async def forget(self, erasure: Erasure) -> None:
        """Delete the conversations of an erasure."""
        ...

    def forget_later(self, erasure: Erasure) -> None:
        """Delete the conversations of an erasure as soon as the store answers."""
        ...


class OneServer:
    """Store of a single server, which keeps nothing: the conversations are only in the server's memory."""

    away: str | None = None
    servers = 1

    async def load_last(self, conversation_id: str, owner: str, asked: DigestedMessages | None = None) -> None:
        """See `TurnStore`."""

    async def load_turn(self, turn_id: str, owner: str) -> None:
        """See `TurnStore`."""

    async def load_prefix(
        self, asked: DigestedMessages, owner: str, user: str | None, tools: DigestedTools | None
    ) -> LoadedTurns:
        """See `TurnStore`."""
        return LoadedTurns()

    async def begin(self, place: Continuation, owner: str, *, by_id: bool) -> Begun | None:
        """See `TurnStore`."""
        return Begun(place=place)

    async def commit(self, turn: AnsweredTurn, place: Continuation, lease: UUID | None, *, is_last: bool) -> None:
        """See `TurnStore`."""

    def release(self, lease: UUID | None) -> None:
        """See `TurnStore`."""

    async def forget(self, erasure: Erasure) -> None:
        """See `TurnStore`."""

    def forget_later(self, erasure: Erasure) -> None:
        """See `TurnStore`."""
