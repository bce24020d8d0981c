"""Record of a loop: customers, events and retrainings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from grpo.retraining.reports import RetrainingReport
from tests.loop.customers import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event of the loop, after so many customers."""

    customers: int
    seconds: float
    name: str
    detail: str
    shown: bool
    """Drawn into the picture."""


@dataclass(slots=True, kw_only=True)
class Record:
    """All that happened, in order."""

    began: float = field(default_factory=time.monotonic)
    visits: list[Visit] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reports: list[RetrainingReport] = field(default_factory=list)

    def note(self, name: str, detail: str = "", *, shown: bool = True) -> None:
        """Keep and print an event."""
        seconds = time.monotonic() - self.began
        event = Event(customers=len(self.visits), seconds=seconds, name=name, detail=detail, shown=shown)
        self.events.append(event)
        print(f"{event.seconds:6.0f} s  {event.customers:5d} customers  {name}  {detail}", flush=True)

    def phases(self, changed_at: int, at_end: int) -> tuple[Sequence[Visit], Sequence[Visit], Sequence[Visit]]:
        """Customers before the change, after it with the first version, and the last ones."""
        after = self.visits[changed_at:]
        return self.visits[:changed_at], [visit for visit in after if visit.version == 1], after[-at_end:]


def success(visits: Sequence[Visit]) -> float:
    """Share of customers whose matter was settled."""
    return fmean(visit.success for visit in visits)
