"""Outages of Prefect's server, on the real database of one: what is waited for, and for how long, after them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import sqlalchemy as sa

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.usefixtures("_own_database")
def test_after_an_outage_runs_have_time_to_be_heard_before_they_are_lost():
    """A heartbeat was due during the outage: the first evaluation waits for another minute, the second does not again.

    An automation of somebody else's keeps its time.
    """
    from prefect.server.database import provide_database_interface
    from prefect.server.events.schemas.automations import EventTrigger, Posture

    from grpo_local.automations import RECOVERY
    from grpo_local.prefect_server.outages import HEARD_S, patient_evaluation

    db = provide_database_interface()
    silence = EventTrigger(posture=Posture.Proactive, within=timedelta(seconds=120), threshold=1)
    due = datetime.now(UTC) - timedelta(seconds=30)
    ends: list[dict[str, datetime]] = []

    async def waited() -> dict[str, datetime]:
        async with db.session_context() as session:
            rows = await session.execute(
                sa.select(db.Automation.name, db.AutomationBucket.end).join(
                    db.AutomationBucket, db.AutomationBucket.automation_id == db.Automation.id
                )
            )
            return {name: end for name, end in rows.all()}

    async def put_back() -> None:
        async with db.session_context(begin_transaction=True) as session:
            await session.execute(sa.update(db.AutomationBucket).values(end=due))

    async def evaluate() -> None:
        ends.append(await waited())

    async def outage() -> None:
        async with db.session_context(begin_transaction=True) as session:
            for name in (RECOVERY[0], "of somebody else"):
                automation = uuid4()
                await session.execute(
                    sa.insert(db.Automation).values(id=automation, name=name, trigger=silence, actions=[], enabled=True)
                )
                await session.execute(
                    sa.insert(db.AutomationBucket).values(
                        automation_id=automation, trigger_id=uuid4(), bucketing_key=[], start=due, end=due, count=0
                    )
                )
        evaluation = patient_evaluation(evaluate)
        await evaluation()  # the server was not there before
        await put_back()
        await evaluation()  # the server was there

    before = datetime.now(UTC)
    asyncio.run(outage())
    first, second = ends
    assert first[RECOVERY[0]] >= before + timedelta(seconds=HEARD_S)
    assert first["of somebody else"] == due
    assert second == {RECOVERY[0]: due, "of somebody else": due}
