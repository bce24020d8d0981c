"""Store of answered turns beyond the memory of one server: none, or the one of `grpo.serving.shared_conversations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from grpo.scenarios.served.records import Erasure
from grpo.serving.conversations import AnsweredTurn, Continuation
from grpo.serving.digests import DigestedMessages, DigestedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTurns:
    """Turns that a request may go on from, which are in memory now."""

    turns: tuple[AnsweredTurn, ...] = ()
    ambiguous: frozenset[str] = frozenset()
    """Digests that several turns have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A request that may go on."""

    place: Continuation
    lease: UUID | None = None
    """Lease on the turn that it goes on from, and on its answer until that is sent."""


class TurnStore(Protocol):
    """Store of answered turns, for which `Conversations` is a cache. Raises `APIError` 503 where it does not answer."""

    @property
    def away(self) -> str | None:
        """Why the store does not answer; None while it does."""
        ...

    @property
    def servers(self) -> int:
        """Number of servers that share it."""
        ...

    async def load_last(self, conversation_id: str, owner: str, asked: DigestedMessages | None = None) -> None:
        """Bring the last turn of a conversation into memory, or forget it there.

        A turn whose server was killed before its answer was sent is undone where `asked` is the same request again.
        """
        ...

    async def load_turn(self, turn_id: str, owner: str) -> None:
        """Bring a turn into memory, or forget it there."""
        ...

    async def load_prefix(
        self, asked: DigestedMessages, owner: str, user: str | None, tools: DigestedTools | None
    ) -> LoadedTurns:
        """Bring the turns into memory that messages may continue. `tools` are the client's, None for a version's."""
        ...

    async def begin(self, place: Continuation, owner: str, *, by_id: bool) -> Begun | None:
        """Begin a request at its place; None where another request has gone on from there, so that it is found again.

        Raises `APIError` 409 for a conversation that is named by its id and of which a turn is in progress.
        """
        ...

    async def commit(self, turn: AnsweredTurn, place: Continuation, lease: UUID | None, *, is_last: bool) -> None:
        """Keep an answered turn. Raises `APIError` 409 where another turn was answered in its place."""
        ...

    def release(self, lease: UUID | None) -> None:
        """End a request, whose answer was sent or whose client is gone."""
        ...

    async def forget(self, erasure: Erasure) -> None:
        """Delete the conversations of an erasure."""
        ...

    def forget_later(self, erasure: Erasure) -> None:
        """Delete the conversations of an erasure as soon as the store answers."""
        ...


class OneServer:
    """No store: the memory of this server is all that there is."""

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
