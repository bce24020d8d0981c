"""Outages of Prefect's server and of its database are not taken for the silence of runs.

Runs send heartbeats, and an automation takes a run without one for lost. After a time in which the server or its
database was away no run has been heard, so that every one would be lost at once: each would crash and be started again
while its process goes on, also one that is Completed in the same second. So runs get time to be heard again first.

Prefect evaluates such automations in a service that calls `triggers.evaluate_proactive_triggers`. It has no hook, and
so `install()` replaces that function by one that looks for an outage before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from prefect.server.database import PrefectDBInterface, provide_database_interface
from prefect.server.events import triggers

from grpo_flows.local.automations import RECOVERY
from grpo_flows.local.settings import HEARTBEAT_S

logger = logging.getLogger("prefect.server.services.outages")

OUTAGE_S = 20.0
"""Time without an evaluation that counts as an outage; the server evaluates every 5 s."""
HEARD_S = 2 * HEARTBEAT_S
"""Time in which a run that goes on is heard again."""


def install() -> None:
    """Let this server look for outages before it evaluates automations."""
    triggers.evaluate_proactive_triggers = patient_evaluation(triggers.evaluate_proactive_triggers)


def patient_evaluation(evaluate: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """The evaluation of automations that have waited for events, with more time after an outage.

    The first evaluation comes after an outage as well: the server was not there before.
    """
    last = [-OUTAGE_S]

    async def evaluate_after_outages() -> None:
        try:
            if time.monotonic() - last[0] > OUTAGE_S:
                await give_time(provide_database_interface())
        except (OSError, sa.exc.SQLAlchemyError) as error:
            logger.warning("nothing is evaluated while the database is away: %s", type(error).__name__)
            return
        await evaluate()
        if await _answers(provide_database_interface()):
            last[0] = time.monotonic()

    return evaluate_after_outages


async def give_time(db: PrefectDBInterface) -> None:
    """Let the automations for lost runs wait for events until `HEARD_S` from now at least."""
    end = datetime.now(UTC) + timedelta(seconds=HEARD_S)
    ours = sa.select(db.Automation.id).where(db.Automation.name.in_(RECOVERY))
    async with db.session_context(begin_transaction=True) as session:
        await session.execute(
            sa.update(db.AutomationBucket)
            .where(db.AutomationBucket.automation_id.in_(ours), db.AutomationBucket.end < end)
            .values(end=end)
            .execution_options(synchronize_session=False)
        )


async def _answers(db: PrefectDBInterface) -> bool:
    try:
        async with db.session_context() as session:
            await session.execute(sa.select(1))
    except (OSError, sa.exc.SQLAlchemyError):
        return False
    return True
