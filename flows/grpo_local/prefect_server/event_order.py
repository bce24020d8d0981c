"""Order in which Prefect's server evaluates events. PREFECT_SERVER_EVENTS_CAUSAL_ORDERING names this module.

An event of a run follows the event of its previous state. Prefect keeps an event back, for up to 15 minutes, until it
has evaluated the previous one. It waits in vain if the previous event was evaluated by a server that has ended since,
or in the very moment in which the follower was put on the waiting list. Then a run that crashed would stay crashed for
15 minutes. Here an event is kept back only for `PATIENCE_S`, which is enough for another event of the same process to
arrive, and is evaluated after that.

A machine's clock may be off. Automations compare the times at which events occurred with the server's clock. If the
clock of a machine is late, its heartbeats are too old when they arrive, and a healthy run would count as lost.
Therefore, if the time of an event differs from its arrival by more than `CLOCK_S`, its arrival counts as its time.
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
        """Raise `EventArrivedEarly` if the event has to wait for the one that it follows."""
        if abs((event.occurred - event.received).total_seconds()) > CLOCK_S:
            event.occurred = event.received
        if event.received > _patience_ends():
            await super().wait_for_leader(event)

    async def get_lost_followers(self) -> list[ReceivedEvent]:
        """Remove the events that have waited long enough, and return them in the order in which they occurred."""
        async with self._lock:
            waited = [self._events[id] for id, since in self._waitlist.items() if since <= _patience_ends()]
        for event in waited:
            await self.forget_follower(event)
        return sorted(waited, key=lambda event: event.occurred)


def _patience_ends() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=PATIENCE_S)
