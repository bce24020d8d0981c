"""Services of Prefect's server that find lost runs if the events that automations react to were lost.

Automations react to events, which the server keeps in memory. If the server is killed between a crash and the
reaction, or while its database is away, the reaction is lost. Therefore the server also looks into its database now and
then. It starts crashed runs again, as the automation `grpo: crashed runs go on` should have done: it uses its pools and
its bound on starts, and does nothing if the automation is paused.

Other automations wait for the heartbeat of a run, or for its next state, from the event of its state on. If that event
and the heartbeats after it were lost, nothing waits for the run. If its process is lost as well, it would then stay
Running for ever, and keep every later run from starting. Therefore the server sends the event again if an automation
does not wait for a run that it is for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from docket import Depends, Perpetual
from prefect.server import models
from prefect.server.database import PrefectDBInterface, provide_database_interface
from prefect.server.events.clients import PrefectServerEventsClient
from prefect.server.events.schemas.automations import Automation, EventTrigger
from prefect.server.events.schemas.events import Event
from prefect.server.models.events import flow_run_state_change_event
from prefect.server.orchestration.core_policy import CoreFlowPolicy
from prefect.server.schemas.responses import SetStateStatus
from prefect.server.schemas.states import AwaitingRetry, StateType
from prefect.server.services.perpetual_services import perpetual_service

from grpo.storage.error_lines import one_line
from grpo_local.automations import RECOVERY, STARTS

logger = logging.getLogger("prefect.server.services.lost_runs")

INTERVAL = timedelta(seconds=20)
GRACE_S = 45
"""Time that automations have for their reaction: several times longer than they take and than events are kept back."""
_MOST = 200
"""Runs that are checked in one go, the oldest first."""
_refused: set[UUID] = set()
"""Crashed runs that could not be scheduled again. Without this set, the log would repeat them in every round."""
_WAITS = {
    RECOVERY[0]: (StateType.RUNNING, "Running"),
    RECOVERY[1]: (StateType.PENDING, "Pending"),
    RECOVERY[2]: (StateType.CANCELLING, "Cancelling"),
}
"""Automations that wait for the next event of a run in a state, and the name of the event from which on they wait.

A state may have another name: a worker sets a run from Pending to Submitting, which is of the type Pending as well.
"""


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
            _of_pools(db, sa.select(db.FlowRun.id), pools)
            .where(*_stays_crashed(db), db.FlowRun.id.not_in(_refused))
            .order_by(db.FlowRun.state_timestamp)
            .limit(_MOST)
        )
        crashed = list(runs.scalars())
    for run in crashed:
        try:
            await _restart(db, run)
        except (OSError, sa.exc.SQLAlchemyError):  # the other runs of this round would fail as well
            raise
        except Exception as error:  # of Prefect's rules: the next runs must not wait for this one
            _refuse(run, one_line(error))


@perpetual_service(enabled_getter=lambda: True)
async def repeat_lost_events(
    db: PrefectDBInterface = Depends(provide_database_interface),  # noqa: B008, docket's way
    perpetual: Perpetual = Perpetual(automatic=True, every=INTERVAL),  # noqa: B008
) -> None:
    """Send the event of a run's state again if the automation for lost runs in this state does not wait for the run."""
    events: dict[UUID, Event] = {}
    async with db.session_context() as session:
        rows = await session.execute(sa.select(db.Automation).where(db.Automation.name.in_(_WAITS)))
        for row in rows.scalars().all():
            automation, read = Automation.model_validate(row, from_attributes=True), datetime.now(UTC)
            state, name = _WAITS[automation.name]
            waits = sa.select(db.AutomationBucket.bucketing_key).where(
                db.AutomationBucket.automation_id == automation.id
            )
            waited_for = {key[0] for key in (await session.execute(waits)).scalars()}
            runs = await session.execute(
                _of_pools(db, sa.select(db.FlowRun), _pools(automation) if automation.enabled else [])
                .where(db.FlowRun.state_type == state, *_unchanged(db))
                .order_by(db.FlowRun.state_timestamp)
            )
            lost = [run for run in runs.unique().scalars() if f"prefect.flow-run.{run.id}" not in waited_for]
            for run in lost[:_MOST]:
                logger.warning("no automation waits for %s run %s, so its event is sent again", run.state_name, run.id)
                events[run.state_id] = await flow_run_state_change_event(
                    session=session,
                    occurred=read,
                    flow_run=run,
                    initial_state_id=None,
                    initial_state=None,
                    validated_state_id=uuid4(),
                    validated_state=run.state.as_state().model_copy(update={"name": name}),
                )
    async with db.session_context() as session, PrefectServerEventsClient() as client:
        unchanged = await session.execute(sa.select(db.FlowRun.state_id).where(db.FlowRun.state_id.in_(events)))
        for state_id in unchanged.scalars():
            await client.emit(events[state_id])


async def _restart(db: PrefectDBInterface, run: UUID) -> None:
    """Schedule one run again, unless its state has changed since."""
    async with db.session_context(begin_transaction=True) as session:
        still = sa.select(db.FlowRun.id).where(db.FlowRun.id == run, *_stays_crashed(db)).with_for_update()
        if (await session.execute(still)).scalar() is None:
            return
        result = await models.flow_runs.set_flow_run_state(
            session=session,
            flow_run_id=run,
            state=AwaitingRetry(message="Its process was lost. It continues from its finished stages."),
            flow_policy=CoreFlowPolicy,
        )
    if result.status == SetStateStatus.ACCEPT:
        logger.warning("flow run %s is scheduled again, because it stayed Crashed and no automation reacted", run)
    else:
        _refuse(run, str(result.details))


def _refuse(run: UUID, reason: str) -> None:
    """Report a run that cannot be scheduled again, once."""
    _refused.add(run)
    logger.warning(
        "flow run %s stayed Crashed and cannot be scheduled again. The server leaves it until it is restarted: %s",
        run,
        reason,
    )


def _stays_crashed(db: PrefectDBInterface) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        db.FlowRun.state_type == StateType.CRASHED,
        db.FlowRun.run_count.between(1, STARTS - 1),
        *_unchanged(db),
    )


def _unchanged(db: PrefectDBInterface) -> tuple[sa.ColumnElement[bool], ...]:
    return (db.FlowRun.state_timestamp <= datetime.now(UTC) - timedelta(seconds=GRACE_S),)


def _of_pools(db: PrefectDBInterface, runs: sa.Select[Any], pools: Sequence[str]) -> sa.Select[Any]:
    return (
        runs.join(db.WorkQueue, db.FlowRun.work_queue_id == db.WorkQueue.id)
        .join(db.WorkPool, db.WorkQueue.work_pool_id == db.WorkPool.id)
        .where(db.WorkPool.name.in_(pools))
    )


def _pools(automation: Automation) -> list[str]:
    """Work pools of the runs that the automation is for."""
    names: list[str] = []
    for trigger in automation.triggers_of_type(EventTrigger):
        related = trigger.match_related
        for resource in related if isinstance(related, list) else [related]:
            names += [name for label, values in resource.items() if label == "prefect.resource.name" for name in values]
    return names
