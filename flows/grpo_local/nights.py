"""Retraining runs of the last days as Prefect's server records them, for `grpo runs --nights`.

A day without a run has a row too, because a schedule that is paused or a worker that is missing would otherwise not be
noticed. What a retraining read and decided is not read here: it is in its own report, `retraining.json`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from operator import itemgetter
from typing import Any

import httpx

from grpo.errors import printable
from grpo.storage.documents import Document
from grpo_local.prefect_pages import STABLE, asked

FLOW = "retrain"


class Night(Document):
    """Run of a day, UTC. If a day has no run, its row has no run either."""

    day: date
    run: str = ""
    """Name of the flow run."""
    state: str = "no run"
    """State as Prefect names it: Completed, Nothing to do, Failed, Crashed, Late, Running."""
    message: str = ""
    """Message of its last state, e.g. the decision or the error."""
    seconds: float = 0.0
    """Total run time of all its attempts."""
    starts: int = 0


def read_nights(client: httpx.Client, days: int, *, today: date | None = None) -> list[Night]:
    """The runs of the flow `retrain` of the last `days` days by their planned start, the newest first.

    Days before the first run are left out, because there was no schedule yet. Raises `httpx.HTTPError`.
    """
    last = today or datetime.now(UTC).date()
    runs = [*_runs(client, last - timedelta(days=days - 1), last)]
    if not runs:
        return []
    by_day: dict[date, list[Night]] = defaultdict(list)
    for start, night in sorted(runs, key=itemgetter(0), reverse=True):
        by_day[start.date()].append(night)
    back = range((last - min(by_day)).days + 1)
    return [night for day in (last - timedelta(days=k) for k in back) for night in by_day[day] or [Night(day=day)]]


def _runs(client: httpx.Client, first: date, last: date) -> Iterator[tuple[datetime, Night]]:
    """Planned start of each run of these days, and its row."""
    planned = {
        "after_": datetime.combine(first, time.min, UTC).isoformat(),
        "before_": datetime.combine(last, time.max, UTC).isoformat(),
    }
    named = {"name": {"any_": [FLOW]}}
    for run in asked(client, "/flow_runs/filter", flows=named, flow_runs={"expected_start_time": planned}, sort=STABLE):
        start = datetime.fromisoformat(run["expected_start_time"]).astimezone(UTC)
        yield start, _night(start.date(), run)


def _night(day: date, run: dict[str, Any]) -> Night:
    state = run["state"] or {}
    return Night(
        day=day,
        run=printable(run["name"]),
        state=state.get("name") or "unknown",
        message=printable(state.get("message") or ""),
        seconds=run["total_run_time"],
        starts=run["run_count"],
    )
