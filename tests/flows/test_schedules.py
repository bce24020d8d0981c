"""Schedules fire: some versions of Prefect's dependencies break them, with an error in the server's log alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCHEDULE = """
import asyncio
from datetime import timedelta

from prefect.server import models, schemas
from prefect.server.database import provide_database_interface
from prefect.server.schemas.core import Deployment, DeploymentSchedule, Flow


async def runs() -> int:
    database = provide_database_interface()
    await database.create_db()
    async with database.session_context(begin_transaction=True) as session:
        flow = await models.flows.create_flow(session, Flow(name="flow"))
        every = schemas.schedules.IntervalSchedule(interval=timedelta(hours=1))
        deployment = await models.deployments.create_deployment(
            session, Deployment(name="hourly", flow_id=flow.id, schedules=[DeploymentSchedule(schedule=every)])
        )
        return len(await models.deployments.schedule_runs(session, deployment_id=deployment.id, max_runs=4))


print(asyncio.run(runs()))
"""


def test_a_schedule_makes_runs(tmp_path: Path):
    """Prefect's own scheduler, called on a database of its own: an hourly schedule has runs."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT")},
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCHEDULE], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0
