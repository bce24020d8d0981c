"""Order in which Prefect's server evaluates events; PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.

An event of a run follows the event of its state before. Prefect keeps an event back, for up to 15 minutes, until it has
evaluated the one before: in vain if a server that has ended since evaluated that one, and if it was evaluated in the
very moment in which the follower was put on the waiting list. A run that crashed would stay so for these 15 minutes.
Here an event is kept back for `PATIENCE_S`, in which another of the same process arrives; then it is evaluated.

A machine's clock may be off. Automations compare the times at which events occurred with the server's clock: with a
clock that is late, heartbeats are too old when they arrive, and a healthy run counts as lost. An event that claims
another time than it arrived, by more than `CLOCK_S`, occurred when it arrived.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prefect.server.events.ordering import memory
from prefect.server.events.schemas.events import ReceivedEvent

PATIENCE_S = 5
CLOCK_S = 30


class CausalOrdering(memory.CausalOrdering):
    """Prefect's order in memory, with less patience."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Raise `EventArrivedEarly` for an event that is to wait for the one that it follows."""
        if abs((event.occurred - event.received).total_seconds()) > CLOCK_S:
            event.occurred = event.received
        if event.received > _patience_ends():
            await super().wait_for_leader(event)

    async def get_lost_followers(self) -> list[ReceivedEvent]:
        """Events that have waited long enough, in the order in which they occurred; they wait no longer."""
        async with self._lock:
            waited = [self._events[id] for id, since in self._waitlist.items() if since <= _patience_ends()]
        for event in waited:
            await self.forget_follower(event)
        return sorted(waited, key=lambda event: event.occurred)


def _patience_ends() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=PATIENCE_S)
