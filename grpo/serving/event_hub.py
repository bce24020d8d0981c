"""Event hub: events of a server, for all subscribers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

KEPT_EVENTS = 256
"""Most events that wait for a slow subscriber. Older ones are dropped, which a gap in the ids shows."""


class Subscription:
    """Events for one reader."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def put(self, event: dict[str, Any]) -> None:
        """Add an event, from any thread."""
        self._waiting.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """Events in order, without end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                yield self._waiting.popleft()


class EventHub:
    """Events for all subscribers."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._ids = itertools.count(1)

    @property
    def subscribers(self) -> int:
        """Number of subscribers."""
        return len(self._subscriptions)

    def publish(self, type: str, **data: Any) -> None:
        """Send an event to all subscribers. Any thread and signal handlers may call this."""
        event = {"id": next(self._ids), "type": type, "time": datetime.now(UTC).isoformat(), "data": data}
        for subscription in tuple(self._subscriptions):
            subscription.put(event)

    @contextmanager
    def subscribe(self) -> Iterator[Subscription]:
        """Receive all events from now on."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
