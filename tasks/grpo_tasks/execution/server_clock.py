"""Clock of Prefect's server, by which runs are due, compared with the clock of this machine.

If the clock of a machine is ten minutes ahead, what it schedules for now is due ten minutes later on the server. If the
clock is behind, a worker on the machine takes each run ten minutes late.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

APART = timedelta(seconds=5)
"""Smallest difference that counts. The header has whole seconds, and its way takes time."""


def ahead(date: str | None, sent: datetime, received: datetime) -> timedelta | None:
    """Time by which the server's clock is ahead, from the header `Date` of an answer, and the times of its request.

    None if the answer has no date that can be read, e.g. because a proxy removed it, or if it came too late to tell.
    """
    if date is None or received - sent > APART:
        return None
    try:
        difference = parsedate_to_datetime(date).astimezone(UTC) - (sent + (received - sent) / 2)
    except (ValueError, OverflowError):
        return None
    return difference if abs(difference) > APART else timedelta(0)
