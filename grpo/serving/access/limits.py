"""Limits per caller: requests and tokens per minute, parallel requests, token budgets per day and per month.

Requests and tokens count in a moving window, so no 60 seconds admit more than the limit, even across two minutes. When
a request is admitted, it takes the largest number of tokens that it may need. When it ends, the unused ones are
refunded.

    limit 100 tokens    t=0 reserve 80   t=1 reserve 30         t=2 settle 50   t=3 reserve 50
                        admitted         refused until t=60                     admitted

A `UsageStore` keeps what was taken. A single server keeps it in its memory, with a file for the budgets. If several
servers share a database, it is kept there, and the limits hold for all of these servers together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from grpo.config.serving import CallerLimits
from grpo.serving.access.callers import Caller
from grpo.serving.access.usage import LocalUsage, Ticket, Usage, UsageStore, has_window
from grpo.serving.protocol.api_errors import APIError

LimitKind = Literal["requests", "tokens", "parallel", "tokens_per_day", "tokens_per_month"]
_PARALLEL_WAIT_S = 1.0
"""Suggested wait, because it is not known when a running request will end."""
_BUDGETS: tuple[LimitKind, ...] = ("tokens_per_day", "tokens_per_month")


class LimitExceeded(APIError):
    """429 for a limit of the caller. `retry_after_s` is None if the same request can never be admitted."""

    def __init__(self, kind: LimitKind, message: str, *, retry_after_s: float | None, headers: dict[str, str]) -> None:
        code = "insufficient_quota" if kind in _BUDGETS else "rate_limit_exceeded"
        type = "insufficient_quota" if kind in _BUDGETS else "rate_limit_error"
        super().__init__(429, message, type=type, code=code, retry_after_s=retry_after_s, headers=headers)
        self.kind: LimitKind = kind


class Limiter:
    """Admission of requests within the limits of their callers, exact for all requests of one store.

    `now` gives the date of the budgets. Calls pass on the errors of the store: a shared store that does not answer
    raises `APIError` 503.
    """

    def __init__(
        self, usages: UsageStore | None = None, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._usages: UsageStore = LocalUsage() if usages is None else usages
        self._now = now

    async def reserve(self, caller: Caller, tokens: int) -> Reservation:
        """Admit a request that takes up to `tokens`: its prompt and the most tokens of its completion.

        If several limits are exceeded, the `LimitExceeded` is for the limit with the longest wait. A request that is
        refused here does not count.
        """
        reservation = await self.enter(caller, tokens)
        try:
            await reservation.take(tokens)
        except BaseException:
            await reservation.cancel()
            raise
        return reservation

    async def enter(self, caller: Caller, tokens: int = 1) -> Reservation:
        """Count a request before its tokens are known, as a parallel request and as a request of this minute.

        Raises `LimitExceeded` if no request with `tokens` tokens is admitted. The caller must then `take` the tokens of
        the request, or `cancel` it.
        """
        ticket = Ticket(caller=caller)
        if not _is_limited(caller.limits):
            return Reservation(self, None, Usage(), caller)
        usage = await self._usages.enter(ticket, tokens, self._budgets_of(caller))
        self._refuse(caller, usage, tokens)
        return Reservation(self, ticket, usage, caller)

    async def check(self, caller: Caller) -> None:
        """Raise `LimitExceeded` if even the shortest request of this caller would be refused now."""
        if _is_limited(caller.limits):
            self._refuse(caller, await self._usages.look(caller, 1, self._budgets_of(caller)), 1)

    def charge(self, caller: Caller, tokens: int) -> None:
        """Count a request that was refused because of its size or shape, with the tokens that it may have had."""
        if has_window(caller.limits):
            self._usages.charge(caller, tokens)

    async def headers(self, caller: Caller) -> dict[str, str]:
        """OpenAI's x-ratelimit-{limit,remaining,reset}-{requests,tokens}, for each limit that the caller has."""
        if not has_window(caller.limits):
            return {}
        return _headers(caller.limits, await self._usages.look(caller, 0, {}))

    async def take(self, ticket: Ticket, tokens: int) -> Usage:
        """Take the tokens of a counted request. See `Reservation.take`."""
        caller = ticket.caller
        budgets = self._budgets_of(caller)
        usage = await self._usages.take(ticket, tokens, budgets)
        self._refuse(caller, usage, tokens, counted=True)
        ticket.tokens, ticket.periods = tokens, tuple(budgets)
        return usage

    async def settle(self, ticket: Ticket, tokens: int) -> Usage:
        """End a request. See `Reservation.settle`."""
        return await self._usages.settle(ticket, tokens)

    async def cancel(self, ticket: Ticket) -> None:
        """End a request as if it had not come. See `Reservation.cancel`."""
        await self._usages.cancel(ticket)

    def _refuse(self, caller: Caller, usage: Usage, tokens: int, *, counted: bool = False) -> None:
        """Raise the refusal with the longest wait. Budgets are only checked if the other limits admit the request."""
        if usage.admits(caller.limits, counted=counted):
            return
        refusals = list(_refusals(caller.limits, usage, tokens, counted=counted))
        if not refusals:
            raise self._exhausted(caller, tokens, usage)
        raise max(refusals, key=lambda refusal: math.inf if (wait := refusal.retry_after_s) is None else wait)

    def _budgets_of(self, caller: Caller) -> dict[str, int]:
        """Token budgets of the caller by their periods: today, and this month."""
        limits, today = caller.limits, self._now().astimezone(UTC)
        budgets = {f"{today:%Y-%m-%d}": limits.tokens_per_day, f"{today:%Y-%m}": limits.tokens_per_month}
        return {period: budget for period, budget in budgets.items() if budget is not None}

    def _exhausted(self, caller: Caller, tokens: int, usage: Usage) -> LimitExceeded:
        """Error for a request that needs more tokens than are left of a budget."""
        today, period = self._now().astimezone(UTC), usage.exhausted
        assert period is not None
        is_day = len(period) == len("2026-11-22")
        limit = caller.limits.tokens_per_day if is_day else caller.limits.tokens_per_month
        assert limit is not None
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
        ends = midnight + timedelta(days=1) if is_day else (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        left = max(0, limit - usage.used)
        return LimitExceeded(
            "tokens_per_day" if is_day else "tokens_per_month",
            f"this request may take {tokens} tokens, but {left} are left of {limit} for {period} (UTC)",
            retry_after_s=None if tokens > limit else (ends - today).total_seconds(),
            headers=_headers(caller.limits, usage),
        )


@dataclass(slots=True, eq=False)
class Reservation:
    """Admitted request, which holds its tokens until it is settled. `ticket` is None if the caller has no limits."""

    limiter: Limiter
    ticket: Ticket | None
    usage: Usage
    """Usage of the caller after the last call."""
    caller: Caller
    settled: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the caller's limits. See `Limiter.headers`."""
        return _headers(self.caller.limits, self.usage)

    async def take(self, tokens: int) -> None:
        """Take the tokens of the request. Raises `LimitExceeded` if they are too many."""
        if self.ticket is not None:
            self.usage = await self.limiter.take(self.ticket, tokens)

    async def settle(self, tokens: int) -> None:
        """End the request, which used `tokens` tokens, and refund the rest. Later calls have no effect."""
        if not self.settled:
            self.settled = True
            if self.ticket is not None:
                self.usage = await self.limiter.settle(self.ticket, tokens)

    async def cancel(self) -> None:
        """End the request as if it had not come: it counts in no limit. Later calls have no effect."""
        if not self.settled:
            self.settled = True
            if self.ticket is not None:
                await self.limiter.cancel(self.ticket)


def _is_limited(limits: CallerLimits) -> bool:
    return any(value is not None for value in limits.model_dump().values())


def _refusals(limits: CallerLimits, usage: Usage, tokens: int, *, counted: bool) -> Iterator[LimitExceeded]:
    """Yield an error for each exceeded limit. If the request is `counted` already, only its tokens are checked."""
    headers = _headers(limits, usage)
    if not counted and limits.parallel is not None and usage.running >= limits.parallel:
        message = f"{usage.running} requests of this key run. Its limit is {limits.parallel} at once"
        yield LimitExceeded("parallel", message, retry_after_s=_PARALLEL_WAIT_S, headers=headers)
    if not counted and (wait := usage.request_wait_s) > 0:
        most = limits.requests_per_minute
        message = f"the limit of this key is {most} requests a minute. Try again in {wait:.3g} s"
        yield LimitExceeded("requests", message, retry_after_s=wait, headers=headers)
    if (wait := usage.tokens_wait_s) > 0:
        never = math.isinf(wait)
        remedy = "Shorten it, or lower max_tokens" if never else f"Try again in {wait:.3g} s"
        most = limits.tokens_per_minute
        message = f"this request may take {tokens} tokens, the limit of this key is {most} a minute. {remedy}"
        yield LimitExceeded("tokens", message, retry_after_s=None if never else wait, headers=headers)


def _headers(limits: CallerLimits, usage: Usage) -> dict[str, str]:
    headers = {}
    reset = duration(usage.reset_s)
    for unit, limit, used in (
        ("requests", limits.requests_per_minute, usage.requests),
        ("tokens", limits.tokens_per_minute, usage.tokens),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{unit}"] = str(limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(max(0, limit - used))
            headers[f"x-ratelimit-reset-{unit}"] = reset
    return headers


def duration(seconds: float) -> str:
    """Duration in OpenAI's format: 0.012 → 12ms, 1.5 → 1.5s, 60 → 1m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
