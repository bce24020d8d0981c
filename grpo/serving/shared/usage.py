"""Usage of callers in the database of several servers, see `grpo.serving.access.usage` and `tables.sql`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo.serving.access.callers import Caller
from grpo.serving.access.usage import Ticket, Usage
from grpo.serving.shared.database import SharedDatabase

_STEP = "SELECT * FROM limit_step($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
_END = "SELECT * FROM limit_end($1, $2, $3, $4, $5, $6)"
_CHARGE = (
    "INSERT INTO requests (id, caller, pod, expires, tokens, running) VALUES "
    "(gen_random_uuid(), $1, $2, coalesce($3, extract(epoch FROM now())) + 60, $4, false)"
)


class SharedUsage:
    """Usage of all callers of the servers that share a database, exact for all servers together.

    Each step is one call of a database function that holds the caller's lock. Raises `APIError` 503 while the database
    does not answer. If a server is killed, its requests do not count as running any more, but their tokens stay
    counted. `clock` gives seconds, or None to take the time of the database.
    """

    def __init__(self, database: SharedDatabase, *, clock: Callable[[], float | None] = lambda: None) -> None:
        self._database, self._clock = database, clock

    async def look(self, caller: Caller, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        return await self._step("look", None, caller, tokens, budgets)

    async def enter(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        try:
            return await self._step("enter", ticket, ticket.caller, tokens, budgets)
        except BaseException:  # it may be counted: the database's answer was lost, or the client went away
            self._end_later(ticket, None)
            raise

    async def take(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        return await self._step("take", ticket, ticket.caller, tokens, budgets)

    async def settle(self, ticket: Ticket, tokens: int) -> Usage:
        """See `UsageStore`. If the database does not answer now, the request is settled as soon as it does."""
        try:
            (row,) = await self._database.rows(_END, *self._end(ticket, tokens))
        except BaseException:
            self._end_later(ticket, tokens)
            raise
        return Usage(**row)

    async def cancel(self, ticket: Ticket) -> None:
        """See `UsageStore`."""
        try:
            await self._database.rows(_END, *self._end(ticket, None))
        except BaseException:
            self._end_later(ticket, None)
            raise

    def charge(self, caller: Caller, tokens: int) -> None:
        """See `UsageStore`. The request counts a moment later, because the statement is queued."""
        self._database.later(_CHARGE, caller.key_hash, self._database.pod, self._clock(), tokens)

    async def _step(
        self, step: str, ticket: Ticket | None, caller: Caller, tokens: int, budgets: Mapping[str, int]
    ) -> Usage:
        limits, id = caller.limits, None if ticket is None else ticket.id
        (row,) = await self._database.rows(
            *(_STEP, step, id, self._database.pod, caller.key_hash, self._clock(), tokens),
            *(limits.parallel, limits.requests_per_minute, limits.tokens_per_minute),
            *(list(budgets), list(budgets.values())),
        )
        return Usage(**row)

    def _end(self, ticket: Ticket, tokens: int | None) -> tuple[Any, ...]:
        limits = ticket.caller.limits
        limit = (limits.requests_per_minute, limits.tokens_per_minute)
        return (ticket.id, ticket.caller.key_hash, self._clock(), tokens, *limit)

    def _end_later(self, ticket: Ticket, tokens: int | None) -> None:
        self._database.later(_END, *self._end(ticket, tokens))
