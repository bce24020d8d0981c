"""Crashed runs that no automation has started again, on the real database of Prefect's server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

pytestmark = pytest.mark.filterwarnings("ignore")
POOL = "cpu"


@pytest.mark.usefixtures("_own_database")
def test_a_run_that_cannot_be_started_again_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Three runs crashed an hour ago. Prefect's rules fail at the first one, and the other two are scheduled.

    The next round leaves the first one, so that the log names it once.
    """
    from prefect.server import models
    from prefect.server.database import provide_database_interface
    from prefect.server.events.schemas.automations import Automation
    from prefect.server.schemas.actions import WorkPoolCreate
    from prefect.server.schemas.core import Deployment, Flow, FlowRun
    from prefect.server.schemas.states import State, StateType

    from grpo_local.automations import RECOVERY, STARTS, _recovery
    from grpo_local.prefect_server import lost_runs

    db, hour_ago = provide_database_interface(), datetime.now(UTC) - timedelta(hours=1)

    async def crash(count: int) -> list[UUID]:
        [recovery] = [made for made in _recovery([POOL], POOL, pending_s=60) if made.name == RECOVERY[-1]]
        async with db.session_context(begin_transaction=True) as session:
            pool = await models.workers.create_work_pool(session, WorkPoolCreate(name=POOL, type="process"))
            flow = await models.flows.create_flow(session, Flow(name="train"))
            server = Automation.model_validate(recovery.model_dump(mode="json"))
            values = {name: getattr(server, name) for name in ("name", "enabled", "trigger", "actions")}
            await session.execute(sa.insert(db.Automation).values(id=server.id, **values))
            deployed = Deployment(name="nightly", flow_id=flow.id, work_queue_id=pool.default_queue_id)
            deployment = await models.deployments.create_deployment(session, deployed)
            runs = []
            for index in range(count):
                run = FlowRun(flow_id=flow.id, deployment_id=deployment.id, work_queue_id=pool.default_queue_id)
                made = await models.flow_runs.create_flow_run(session, run)
                state = State(type=StateType.CRASHED, timestamp=hour_ago + timedelta(minutes=index))
                await models.flow_runs.set_flow_run_state(session, made.id, state, force=True)
                past = {"run_count": STARTS - 1, "state_timestamp": state.timestamp}
                await session.execute(sa.update(db.FlowRun).where(db.FlowRun.id == made.id).values(**past))
                runs.append(made.id)
            return runs

    async def states(runs: list[UUID]) -> list[StateType]:
        async with db.session_context() as session:
            return [(await models.flow_runs.read_flow_run(session, run)).state.type for run in runs]

    async def check() -> tuple[UUID, list[StateType], list[StateType]]:
        runs = await crash(3)
        changed, refused = models.flow_runs.set_flow_run_state, runs[0]

        async def refuse_first(*, flow_run_id: UUID, **given: object) -> object:
            if flow_run_id == refused:
                raise RuntimeError("refused by a rule")
            return await changed(flow_run_id=flow_run_id, **given)

        with monkeypatch.context() as patched:
            patched.setattr(models.flow_runs, "set_flow_run_state", refuse_first)
            await lost_runs.restart_crashed_runs(db)
        during = await states(runs)
        await lost_runs.restart_crashed_runs(db)
        return refused, during, await states(runs)

    refused, during, after = asyncio.run(check())
    assert during == [StateType.CRASHED, StateType.SCHEDULED, StateType.SCHEDULED]
    assert after == during
    [line] = [line for line in caplog.messages if line.startswith(f"flow run {refused} stayed Crashed")]
    assert "RuntimeError: refused by a rule" in line
