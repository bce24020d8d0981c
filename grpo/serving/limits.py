"""Limits per caller: requests and tokens a minute, parallel requests, token budgets of a day and a month.

Requests and tokens count in a moving window: in any 60 seconds at most the limit is admitted, also across minutes. A
request takes its largest possible number of tokens when it is admitted, and is refunded the unused ones when it ends.

    limit 100 tokens    t=0 reserve 80   t=1 reserve 30         t=2 settle 50   t=3 reserve 50
                        admitted         refused until t=60                     admitted

Windows and parallel requests count in one process, budgets in one file.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from grpo.serving.api_errors import APIError
from grpo.serving.budgets import TokenBudgets
from grpo.serving.callers import Caller, CallerLimits

LimitKind = Literal["requests", "tokens", "parallel", "tokens_per_day", "tokens_per_month"]
_WINDOW_S = 60.0
_PARALLEL_WAIT_S = 1.0
"""Wait for a running request to end; when that is, is not known."""
_BUDGETS: tuple[LimitKind, ...] = ("tokens_per_day", "tokens_per_month")


class LimitExceeded(APIError):
    """429 for a limit of the caller; `retry_after_s` is None where the same request can never be admitted."""

    def __init__(self, kind: LimitKind, message: str, *, retry_after_s: float | None, headers: dict[str, str]) -> None:
        code = "insufficient_quota" if kind in _BUDGETS else "rate_limit_exceeded"
        type = "insufficient_quota" if kind in _BUDGETS else "rate_limit_error"
        super().__init__(429, message, type=type, code=code, retry_after_s=retry_after_s, headers=headers)
        self.kind: LimitKind = kind


@dataclass(slots=True)
class _Entry:
    """An admitted request in the window."""

    expires: float
    tokens: int


@dataclass(slots=True)
class _Usage:
    """Requests of one caller."""

    window: deque[_Entry] = field(default_factory=deque)
    tokens: int = 0
    running: int = 0

    def expire(self, now: float) -> None:
        while self.window and self.window[0].expires <= now:
            self.tokens -= self.window.popleft().tokens

    def wait_for_request(self, limit: int, now: float) -> float:
        """Seconds until one more request fits; at most 0 where it fits now."""
        over = len(self.window) - limit
        return self.window[over].expires - now if over >= 0 else 0.0

    def wait_for_tokens(self, tokens: int, limit: int, now: float) -> float:
        """Seconds until so many tokens fit, infinite where they are more than the limit."""
        if tokens > limit:
            return math.inf
        over = self.tokens + tokens - limit
        wait = 0.0
        for entry in self.window:
            if over <= 0:
                break
            over -= entry.tokens
            wait = entry.expires - now
        return wait


class Limiter:
    """Admission of requests within the limits of their callers, exact for all requests of this process.

    Callers with a budget need `budgets`. `clock` gives seconds, `now` the date.
    """

    def __init__(
        self,
        budgets: TokenBudgets | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._budgets, self._clock, self._now = budgets, clock, now
        self._usages: OrderedDict[str, _Usage] = OrderedDict()
        self._lock = threading.Lock()

    async def reserve(self, caller: Caller, tokens: int) -> Reservation:
        """Admit a request that takes at most `tokens`: its prompt and the bound of its completion.

        Raises `LimitExceeded` for the limit with the longest wait; a refused request counts for none.
        """
        with self._lock:
            now = self._clock()
            usage = self._usage(caller, now)
            self._refuse(caller, usage, tokens, now)
            periods = self._take_budgets(caller, tokens, usage, now)
            entry = None
            if caller.limits.requests_per_minute is not None or caller.limits.tokens_per_minute is not None:
                entry = _Entry(now + _WINDOW_S, tokens)
                usage.window.append(entry)
                usage.tokens += tokens
            usage.running += 1
        return Reservation(self, caller, usage, entry, tokens, periods)

    def check(self, caller: Caller) -> None:
        """Raise `LimitExceeded` for a caller from whom no request is admitted now, however short it is."""
        with self._lock:
            now = self._clock()
            usage = self._usage(caller, now)
            self._refuse(caller, usage, 1, now)
            for period, budget in self._budgets_of(caller).items():
                if self._file(caller).used(caller.key_hash, period) >= budget:
                    raise self._exhausted(caller, 1, period, budget, usage, now)

    def headers(self, caller: Caller) -> dict[str, str]:
        """OpenAI's x-ratelimit-{limit,remaining,reset}-{requests,tokens}, of the limits that the caller has."""
        with self._lock:
            now = self._clock()
            return _headers(caller.limits, self._usage(caller, now), now)

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """End a reservation, see `Reservation.settle`."""
        with self._lock:
            if reservation.settled:
                return
            reservation.settled = True
            usage, entry, refund = reservation.usage, reservation.entry, reservation.tokens - tokens
            usage.running -= 1
            usage.expire(self._clock())
            if entry is not None and usage.window and entry.expires >= usage.window[0].expires:
                usage.tokens -= refund
                entry.tokens -= refund
            if reservation.periods and refund:
                self._file(reservation.caller).add(reservation.caller.key_hash, -refund, reservation.periods)

    def _usage(self, caller: Caller, now: float) -> _Usage:
        """Usage of a caller; one idle caller is forgotten on the way, so that memory is bounded by active ones."""
        usage = self._usages.setdefault(caller.key_hash, _Usage())
        self._usages.move_to_end(caller.key_hash)
        usage.expire(now)
        oldest_hash, oldest = next(iter(self._usages.items()))
        oldest.expire(now)
        self._usages.move_to_end(oldest_hash)
        if oldest is not usage and not oldest.window and not oldest.running:
            del self._usages[oldest_hash]
        return usage

    def _refuse(self, caller: Caller, usage: _Usage, tokens: int, now: float) -> None:
        refusals = list(self._refusals(caller, usage, tokens, now))
        if refusals:
            raise max(refusals, key=lambda refusal: math.inf if (wait := refusal.retry_after_s) is None else wait)

    def _refusals(self, caller: Caller, usage: _Usage, tokens: int, now: float) -> Iterator[LimitExceeded]:
        limits = caller.limits
        headers = _headers(limits, usage, now)
        if limits.parallel is not None and usage.running >= limits.parallel:
            message = f"{usage.running} requests of this key run; its limit is {limits.parallel} at once"
            yield LimitExceeded("parallel", message, retry_after_s=_PARALLEL_WAIT_S, headers=headers)
        if (most := limits.requests_per_minute) is not None:
            wait = usage.wait_for_request(most, now)
            if wait > 0:
                message = f"the limit of this key is {most} requests a minute; try again in {wait:.3g} s"
                yield LimitExceeded("requests", message, retry_after_s=wait, headers=headers)
        if (most := limits.tokens_per_minute) is not None:
            wait = usage.wait_for_tokens(tokens, most, now)
            if wait > 0:
                never = math.isinf(wait)
                remedy = "shorten it, or lower max_tokens" if never else f"try again in {wait:.3g} s"
                message = f"this request may take {tokens} tokens, the limit of this key is {most} a minute; {remedy}"
                yield LimitExceeded("tokens", message, retry_after_s=None if never else wait, headers=headers)

    def _take_budgets(self, caller: Caller, tokens: int, usage: _Usage, now: float) -> tuple[str, ...]:
        """Take the tokens of the caller's budgets; returns the periods that they were taken of."""
        given = self._budgets_of(caller)
        if not given:
            return ()
        exhausted = self._file(caller).take(caller.key_hash, tokens, given)
        if exhausted is None:
            return tuple(given)
        raise self._exhausted(caller, tokens, exhausted, given[exhausted], usage, now)

    def _budgets_of(self, caller: Caller) -> dict[str, int]:
        """Token budgets of the caller by their periods: today, and this month."""
        limits, today = caller.limits, self._now().astimezone(UTC)
        budgets = {f"{today:%Y-%m-%d}": limits.tokens_per_day, f"{today:%Y-%m}": limits.tokens_per_month}
        return {period: budget for period, budget in budgets.items() if budget is not None}

    def _file(self, caller: Caller) -> TokenBudgets:
        if self._budgets is None:
            raise RuntimeError(f"key {caller.name} has a token budget, and this limiter has no file of budgets")
        return self._budgets

    def _exhausted(
        self, caller: Caller, tokens: int, period: str, budget: int, usage: _Usage, now: float
    ) -> LimitExceeded:
        """Error for a request that a budget is too small for."""
        today = self._now().astimezone(UTC)
        is_day = len(period) == len("2026-11-22")
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
        ends = midnight + timedelta(days=1) if is_day else (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        left = max(0, budget - self._file(caller).used(caller.key_hash, period))
        return LimitExceeded(
            "tokens_per_day" if is_day else "tokens_per_month",
            f"this request may take {tokens} tokens; {left} are left of {budget} for {period} (UTC)",
            retry_after_s=None if tokens > budget else (ends - today).total_seconds(),
            headers=_headers(caller.limits, usage, now),
        )


@dataclass(slots=True, eq=False)
class Reservation:
    """An admitted request; it takes its tokens until it is settled."""

    limiter: Limiter
    caller: Caller
    usage: _Usage
    entry: _Entry | None
    tokens: int
    periods: tuple[str, ...]
    settled: bool = False

    def settle(self, tokens: int) -> None:
        """End the request, which used so many tokens; the rest is refunded. Only the first call counts."""
        self.limiter.settle(self, tokens)


def _headers(limits: CallerLimits, usage: _Usage, now: float) -> dict[str, str]:
    headers = {}
    reset = duration(usage.window[-1].expires - now if usage.window else 0.0)
    for unit, limit, used in (
        ("requests", limits.requests_per_minute, len(usage.window)),
        ("tokens", limits.tokens_per_minute, usage.tokens),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{unit}"] = str(limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(max(0, limit - used))
            headers[f"x-ratelimit-reset-{unit}"] = reset
    return headers


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: 0.012 → 12ms, 1.5 → 1.5s, 60 → 1m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{rest / 1000:g}s"
