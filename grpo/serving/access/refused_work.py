"""Budget of refused work. It bounds what each key may cause, because it costs time to read and refuse a request.

If a request is refused for its size, shape or state (`STATUSES` without `FOR_NOW`), it is charged to its key in two
places. In the key's own limits it counts as a request, and a quarter of its characters count as tokens. Its bytes count
in a budget per minute that every key has. If the CPU time of its preparation is a larger share of that budget than the
bytes, the CPU time counts instead, because 100 KB of short messages take longer to read than one text of 4 MB. If a
request is only refused for now (429, 503) or fails (500) after its body was read, it is charged only to that budget.
Once the budget is used up, requests of the key get 429 before their bodies are read, each after `PENALTY_S`, because
refusing them at full speed would take a tenth of a core from the streams of others.

The budget is per key and not per address, because all users behind a proxy have one address, and one of them could lock
out the others. A request without a valid key is refused by its head, without a budget. If an address sends more than
`UNAUTHENTICATED_PER_SECOND` of them, its answers are delayed. The answer of a public path is delayed if the request has
a body, because public paths read none.

If the sender of a file for rollouts goes away, the part that it has sent is not charged. A whole file costs the server
as much and is taken, so that a charge would stop no attacker, but the gigabytes of one broken connection would lock a
learner out for a minute.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from grpo.config.serving import REFUSED_BYTES
from grpo.serving.access.callers import Caller
from grpo.serving.access.limits import Limiter
from grpo.serving.protocol.api_errors import APIError

LEAST_BYTES = 4096
"""Smallest number of bytes that a refused request counts as."""
REFUSED_CPU_S = 1.0
"""Seconds of a core that refused requests of one key may take in any 60 seconds."""
FOR_NOW = frozenset({429, 500, 503})
"""Statuses of requests that may be admitted later, 500 among them, because a text may be what makes a renderer fail.
They are charged only if a body was read."""
STATUSES = frozenset({400, 403, 404, 405, 408, 409, 410, 411, 413, 415, 422, 426}) | FOR_NOW
PENALTY_S = 1.0
"""Shortest delay of a refusal after a key has used up its budget or its number of WebSockets."""
UNAUTHENTICATED_PER_SECOND = 20
"""Requests per second without a valid key that are refused without a delay, for each address."""
_ADDRESSES = 1024
_PENALTIES, _LONGEST_PENALTY_S = 16, 30.0
_MOST_WAITING = 4096
_WINDOW_S = 60.0
_CHARACTERS_PER_TOKEN = 4


class UsedUp(APIError):
    """429 for a key that has used up its budget of refused work."""


class RefusedWork:
    """Refused requests of each key in the last minute."""

    def __init__(
        self, limiter: Limiter, *, bytes_per_minute: int = REFUSED_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limiter, self._most, self._clock = limiter, bytes_per_minute, clock
        self._windows: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()
        self.requests = 0
        """Requests that were refused and charged."""
        self.bytes = 0
        """Bytes of the bodies and frames of these requests."""
        self.exceeded = 0
        """Requests that got 429 because the budget of their key was used up."""

    def check(self, caller: Caller) -> None:
        """Raise `UsedUp` if the caller's key has used up its budget."""
        now = self._clock()
        window = self._expired(caller.key_hash, now)
        used = sum(size for _, size in window)
        if used < self._most:
            return
        over, wait_s = used - self._most, 0.0
        for expires, size in window:
            over -= size
            wait_s = expires - now
            if over < 0:
                break
        self.exceeded += 1
        raise UsedUp(
            429,
            f"refused requests of this key had {used} bytes within a minute, the limit is {self._most}. Try again in "
            f"{wait_s:.3g} s, and correct the faults that the refusals name",
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after_s=wait_s,
            headers={"connection": "close"},
        )

    def charge(self, caller: Caller, size: int, *, status: int = 400, cpu_s: float = 0.0) -> None:
        """Charge a refused request to its key, by its bytes and the CPU time of its preparation.

        A request that is refused for now is not charged if it has no body.
        """
        if status not in STATUSES or (status in FOR_NOW and not size):
            return
        self.requests += 1
        self.bytes += size
        now = self._clock()
        window = self._expired(caller.key_hash, now)
        size_charged = max(size, LEAST_BYTES, int(self._most * cpu_s / REFUSED_CPU_S))
        expires = float(math.ceil(now)) + _WINDOW_S
        if window and window[-1][0] == expires:  # one entry per second, so that memory is bounded
            size_charged += window.pop()[1]
        window.append((expires, size_charged))
        self._windows[caller.key_hash] = window
        if status not in FOR_NOW:
            self._limiter.charge(caller, size // _CHARACTERS_PER_TOKEN)

    def _expired(self, key: str, now: float) -> deque[tuple[float, int]]:
        """Entries of a key that still count. Also forgets the oldest key in memory if none of its entries counts."""
        for name in {key, next(iter(self._windows), key)}:
            window = self._windows.get(name)
            while window and window[0][0] <= now:
                window.popleft()
            if window is not None and not window:
                del self._windows[name]
        return self._windows.get(key) or deque()


class Tarpit:
    """Delay before a refusal is sent, because clients that reconnect after each refusal slow down all others."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()
        self._all = 0

    async def __call__(self, sender: str) -> None:
        """Wait. The more refusals of this key or address wait, the longer: it gets `_PENALTIES` of them in `PENALTY_S`.

        If `_MOST_WAITING` refusals wait already, this one does not, so that the memory for them is bounded.
        """
        if self._all >= _MOST_WAITING:
            return
        self._all += 1
        self._waiting[sender] += 1
        try:
            waiting = self._waiting[sender]
            await asyncio.sleep(min(_LONGEST_PENALTY_S, PENALTY_S * max(1.0, waiting / _PENALTIES)))
        finally:
            self._all -= 1
            self._waiting[sender] -= 1
            if not self._waiting[sender]:
                del self._waiting[sender]


class UnauthenticatedRequests:
    """Counts of requests without a valid key in the current second, by address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def is_flood(self, address: str) -> bool:
        """Count a request. True if its address has sent more than `UNAUTHENTICATED_PER_SECOND` in this second."""
        second = int(self._clock())
        before, count = self._counts.pop(address, (second, 0))
        count = count + 1 if before == second else 1
        self._counts[address] = second, count
        if len(self._counts) > _ADDRESSES:
            self._counts.popitem(last=False)
        return count > UNAUTHENTICATED_PER_SECOND
