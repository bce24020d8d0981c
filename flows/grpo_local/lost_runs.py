"""Service of Prefect's server that starts crashed runs again if no automation has reacted to the crash.

Automations react to events, which the server keeps in memory. If the server is killed between the crash and the
reaction, or while its database is away, the reaction is lost. Therefore the server also looks into its database now and
then. It follows the automation `grpo: crashed runs go on`: it uses its pools and its bound on starts, and does nothing
if the automation is paused.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

import sqlalchemy as sa
from docket import Depends, Perpetual
from prefect.server import models
from prefect.server.database import PrefectDBInterface, provide_database_interface
from prefect.server.events.schemas.automations import Automation, EventTrigger
from prefect.server.orchestration.core_policy import CoreFlowPolicy
from prefect.server.schemas.states import AwaitingRetry, StateType
from prefect.server.services.perpetual_services import perpetual_service

from grpo_local.automations import RECOVERY, STARTS

logger = logging.getLogger("prefect.server.services.lost_runs")

INTERVAL = timedelta(seconds=20)
GRACE_S = 45
"""Time that automations have for their reaction: several times longer than they take and than events are kept back."""
_MOST = 200
"""Runs that are checked in one go, the oldest first."""


@perpetual_service(enabled_getter=lambda: True)
async def restart_crashed_runs(
    db: PrefectDBInterface = Depends(provide_database_interface),  # noqa: B008, docket's way
    perpetual: Perpetual = Perpetual(automatic=True, every=INTERVAL),  # noqa: B008
) -> None:
    """Schedule runs again if they have been Crashed for `GRACE_S`."""
    async with db.session_context() as session:
        row = await session.execute(sa.select(db.Automation).where(db.Automation.name == RECOVERY[-1]))
        automations = [Automation.model_validate(automation, from_attributes=True) for automation in row.scalars()]
        pools = [pool for automation in automations if automation.enabled for pool in _pools(automation)]
        runs = await session.execute(
            sa.select(db.FlowRun.id)
            .join(db.WorkQueue, db.FlowRun.work_queue_id == db.WorkQueue.id)
            .join(db.WorkPool, db.WorkQueue.work_pool_id == db.WorkPool.id)
            .where(db.WorkPool.name.in_(pools), *_stays_crashed(db))
            .order_by(db.FlowRun.state_timestamp)
            .limit(_MOST)
        )
        crashed = list(runs.scalars())
    for run in crashed:
        await _restart(db, run)


async def _restart(db: PrefectDBInterface, run: UUID) -> None:
    """Schedule one run again, unless its state has changed since."""
    async with db.session_context(begin_transaction=True) as session:
        still = sa.select(db.FlowRun.id).where(db.FlowRun.id == run, *_stays_crashed(db)).with_for_update()
        if (await session.execute(still)).scalar() is None:
            return
        await models.flow_runs.set_flow_run_state(
            session=session,
            flow_run_id=run,
            state=AwaitingRetry(message="Its process was lost. It continues from its finished stages."),
            flow_policy=CoreFlowPolicy,
        )
    logger.warning("flow run %s is scheduled again, because it stayed Crashed and no automation reacted", run)


def _stays_crashed(db: PrefectDBInterface) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        db.FlowRun.state_type == StateType.CRASHED,
        db.FlowRun.state_timestamp <= datetime.now(UTC) - timedelta(seconds=GRACE_S),
        db.FlowRun.run_count.between(1, STARTS - 1),
    )


def _pools(automation: Automation) -> list[str]:
    """Work pools of the runs that the automation is for."""
    names: list[str] = []
    for trigger in automation.triggers_of_type(EventTrigger):
        related = trigger.match_related
        for resource in related if isinstance(related, list) else [related]:
            names += [name for label, values in resource.items() if label == "prefect.resource.name" for name in values]
    return names
