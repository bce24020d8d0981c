"""Usage of callers: how much of their limits they have used, as `grpo.serving.access.limits` asks for it.

There are two stores. `LocalUsage` keeps it in the memory of one process, with budgets in an SQLite file. `SharedUsage`
of `grpo.serving.shared.usage` keeps it in the PostgreSQL database of several servers. Each call is one atomic step, so
that racing requests are never granted more than the limit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID, uuid4

from grpo.config.serving import CallerLimits
from grpo.serving.access.budgets import TokenBudgets
from grpo.serving.access.callers import Caller

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Usage of one caller at one moment, and the time that a request with some tokens has to wait."""

    requests: int = 0
    """Requests in the window of a minute."""
    tokens: int = 0
    """Tokens in the window."""
    running: int = 0
    """Requests in progress."""
    reset_s: float = 0.0
    """Time until the window is empty."""
    request_wait_s: float = 0.0
    """Time until one more request fits the window. 0 if it fits now."""
    tokens_wait_s: float = 0.0
    """Time until the tokens fit the window. Infinite if they are more than the limit."""
    exhausted: str | None = None
    """First period in which the tokens exceed the budget. None if they fit all budgets."""
    used: int = 0
    """Tokens that were used in that period."""

    def admits(self, limits: CallerLimits, *, counted: bool) -> bool:
        """True if a request fits. If it is `counted` already, only its tokens are checked."""
        fits = self.tokens_wait_s <= 0 and self.exhausted is None
        if counted:
            return fits
        return fits and self.request_wait_s <= 0 and (limits.parallel is None or self.running < limits.parallel)


@dataclass(slots=True, kw_only=True)
class Ticket:
    """Request that counts among the running ones until it ends, and in the window of its minute."""

    id: UUID = field(default_factory=uuid4)
    caller: Caller
    tokens: int = 0
    """Tokens that the request has taken."""
    periods: tuple[str, ...] = ()
    """Periods of the budgets from which the tokens were taken."""


class UsageStore(Protocol):
    """Store of the usage of all callers. `budgets` maps periods to the caller's token budgets."""

    async def look(self, caller: Caller, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """Usage for a request with this number of tokens. Nothing is counted or taken."""
        ...

    async def enter(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """Count a request if one with this number of tokens fits. It does not take the tokens yet."""
        ...

    async def take(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """Take the tokens of a counted request if they fit. Then its minute begins again."""
        ...

    async def settle(self, ticket: Ticket, tokens: int) -> Usage:
        """End a request that has used this number of tokens. The other tokens that it took are given back."""
        ...

    async def cancel(self, ticket: Ticket) -> None:
        """End a request as if it had not come: it leaves the window, and its tokens are given back."""
        ...

    def charge(self, caller: Caller, tokens: int) -> None:
        """Count a request in the window although it has ended already."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    """An admitted request in the window."""

    expires: float
    tokens: int


@dataclass(slots=True)
class _Window:
    """Requests of one caller."""

    entries: deque[_Entry] = field(default_factory=deque)
    tokens: int = 0
    running: int = 0

    def expire(self, now: float) -> None:
        while self.entries and self.entries[0].expires <= now:
            self.tokens -= self.entries.popleft().tokens

    def append(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self.tokens += entry.tokens

    def remove(self, entry: _Entry) -> None:
        """Take an entry out, unless it has expired."""
        if entry in self.entries:
            self.entries.remove(entry)
            self.tokens -= entry.tokens

    def wait_for_request(self, limit: int | None, now: float) -> float:
        """Seconds until one more request fits. Zero or less if it fits now."""
        over = -1 if limit is None else len(self.entries) - limit
        return self.entries[over].expires - now if over >= 0 else 0.0

    def wait_for_tokens(self, tokens: int, limit: int | None, now: float) -> float:
        """Seconds until this number of tokens fits. Infinite if it is more than the limit."""
        if limit is None:
            return 0.0
        if tokens > limit:
            return math.inf
        over = self.tokens + tokens - limit
        wait = 0.0
        for entry in self.entries:
            if over <= 0:
                break
            over -= entry.tokens
            wait = entry.expires - now
        return wait


class LocalUsage:
    """Usage in the memory of this process. If a caller has a budget, `budgets` is needed. `clock` gives seconds."""

    def __init__(self, budgets: TokenBudgets | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._budgets, self._clock = budgets, clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        self._entries: dict[UUID, _Entry] = {}
        """Window entries of the requests in progress, by the ids of their tickets."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of callers that are remembered."""
        return len(self._windows)

    async def look(self, caller: Caller, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        with self._lock:
            return self._usage(caller, tokens, budgets, self._clock())

    async def enter(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        with self._lock:
            now, caller = self._clock(), ticket.caller
            usage = self._usage(caller, tokens, budgets, now)
            if usage.admits(caller.limits, counted=False):
                window = self._windows[caller.key_hash]
                window.running += 1
                if has_window(caller.limits):
                    self._entries[ticket.id] = entry = _Entry(now + WINDOW_S, 0)
                    window.append(entry)
            return usage

    async def take(self, ticket: Ticket, tokens: int, budgets: Mapping[str, int]) -> Usage:
        """See `UsageStore`."""
        with self._lock:
            now, caller = self._clock(), ticket.caller
            usage = self._usage(caller, tokens, budgets, now)
            if not usage.admits(caller.limits, counted=True):
                return usage
            if budgets and (exhausted := self._file(caller).take(caller.key_hash, tokens, budgets)) is not None:
                return self._exhausted(usage, caller, exhausted)  # another process of this machine took them first
            window = self._windows[caller.key_hash]
            if (entry := self._entries.get(ticket.id)) is not None:
                window.remove(entry)
                self._entries[ticket.id] = entry = _Entry(now + WINDOW_S, tokens)
                window.append(entry)
            return self._usage(caller, 0, {}, now)

    async def settle(self, ticket: Ticket, tokens: int) -> Usage:
        """See `UsageStore`."""
        with self._lock:
            now, caller, refund = self._clock(), ticket.caller, ticket.tokens - tokens
            window = self._windows[caller.key_hash]
            window.running -= 1
            window.expire(now)
            entry = self._entries.pop(ticket.id, None)
            if entry is not None and window.entries and entry.expires >= window.entries[0].expires:
                window.tokens -= refund
                entry.tokens -= refund
            if ticket.periods and refund:
                self._file(caller).add(caller.key_hash, -refund, ticket.periods)
            return self._usage(caller, 0, {}, now)

    async def cancel(self, ticket: Ticket) -> None:
        """See `UsageStore`."""
        with self._lock:
            window = self._windows[ticket.caller.key_hash]
            window.running -= 1
            if (entry := self._entries.pop(ticket.id, None)) is not None:
                window.remove(entry)
            if ticket.periods:
                self._file(ticket.caller).add(ticket.caller.key_hash, -ticket.tokens, ticket.periods)

    def charge(self, caller: Caller, tokens: int) -> None:
        """See `UsageStore`."""
        with self._lock:
            now = self._clock()
            self._usage(caller, 0, {}, now)
            self._windows[caller.key_hash].append(_Entry(now + WINDOW_S, tokens))

    def _usage(self, caller: Caller, tokens: int, budgets: Mapping[str, int], now: float) -> Usage:
        window, limits = self._window(caller, now), caller.limits
        usage = Usage(
            requests=len(window.entries),
            tokens=window.tokens,
            running=window.running,
            reset_s=window.entries[-1].expires - now if window.entries else 0.0,
            request_wait_s=window.wait_for_request(limits.requests_per_minute, now),
            tokens_wait_s=window.wait_for_tokens(tokens, limits.tokens_per_minute, now),
        )
        for period, budget in budgets.items():
            if self._file(caller).used(caller.key_hash, period) + tokens > budget:
                return self._exhausted(usage, caller, period)
        return usage

    def _exhausted(self, usage: Usage, caller: Caller, period: str) -> Usage:
        return replace(usage, exhausted=period, used=self._file(caller).used(caller.key_hash, period))

    def _window(self, caller: Caller, now: float) -> _Window:
        """Window of a caller. Each call also forgets one idle caller, so that memory is bounded by the active ones."""
        window = self._windows.setdefault(caller.key_hash, _Window())
        self._windows.move_to_end(caller.key_hash)
        window.expire(now)
        oldest_hash, oldest = next(iter(self._windows.items()))
        oldest.expire(now)
        self._windows.move_to_end(oldest_hash)
        if oldest is not window and not oldest.entries and not oldest.running:
            del self._windows[oldest_hash]
        return window

    def _file(self, caller: Caller) -> TokenBudgets:
        if self._budgets is None:
            raise RuntimeError(f"key {caller.name} has a token budget, and this limiter has no file of budgets")
        return self._budgets


def has_window(limits: CallerLimits) -> bool:
    """True for limits that count requests or tokens of a minute."""
    return limits.requests_per_minute is not None or limits.tokens_per_minute is not None
