"""Patience after outages of Prefect's server or its database, so that runs that go on do not count as lost.

Runs send heartbeats, and for an automation a run without heartbeats is lost. While the server or its database was away,
no heartbeat arrived, so that every run would count as lost at once. Each would crash and be started again while its
process goes on, even if it is Completed in the same second. Therefore runs first get time to be heard again.

Prefect evaluates such automations in a service that calls `triggers.evaluate_proactive_triggers`. Because it has no
hook, `install()` replaces that function by one that looks for an outage first.
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

from grpo_local.automations import RECOVERY
from grpo_local.settings import HEARTBEAT_S

logger = logging.getLogger("prefect.server.services.outages")

OUTAGE_S = 20.0
"""Time without an evaluation that counts as an outage. The server evaluates every 5 s."""
HEARD_S = 2 * HEARTBEAT_S
"""Time within which a run that goes on is heard again."""


def install() -> None:
    """Let this server look for outages before it evaluates automations."""
    triggers.evaluate_proactive_triggers = patient_evaluation(triggers.evaluate_proactive_triggers)


def patient_evaluation(evaluate: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """The evaluation of automations that have waited for events, with more time after an outage.

    The first evaluation counts as one after an outage as well, because the server did not run before.
    """
    last = [-OUTAGE_S]

    async def evaluate_after_outages() -> None:
        try:
            if time.monotonic() - last[0] > OUTAGE_S:
                await give_time(provide_database_interface())
        except (OSError, sa.exc.SQLAlchemyError) as error:
            logger.warning("no automation is evaluated while the database of Prefect is away: %s", type(error).__name__)
            return
        await evaluate()
        if await _answers(provide_database_interface()):
            last[0] = time.monotonic()

    return evaluate_after_outages


async def give_time(db: PrefectDBInterface) -> None:
    """Let the automations for lost runs wait for events for another `HEARD_S` or longer."""
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
