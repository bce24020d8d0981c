"""Retention of Prefect's records, by a real server on a database with old flow runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Completed, Running

from tests import waiting
from tests.e2e.served import LOGIN, prefect_service

until = partial(waiting.until, patience_s=120.0)
pytestmark = pytest.mark.filterwarnings("ignore")


@flow
def night() -> None:
    """A flow whose runs are only recorded."""


def test_old_flow_runs_leave_the_database_and_younger_ones_stay(tmp_path: Path):
    """A run that ended 91 days ago is removed. One of 89 days ago stays, and so does an old one that is Running."""
    database = tmp_path / "prefect.db"
    environment = {
        "GRPO_HOME": str(tmp_path),
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
    }
    with prefect_service(tmp_path, environment).shared() as url, SyncPrefectClient(url, auth_string=LOGIN) as client:
        runs = {name: client.create_flow_run(night, name=name).id for name in ("old", "younger", "stands")}
        for name, run in runs.items():
            state = Running() if name == "stands" else Completed()
            client.set_flow_run_state(run, state, force=True)
    with closing(sqlite3.connect(database)) as connection, connection:
        for name, days in {"old": 91, "younger": 89, "stands": 91}.items():
            time = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S.%f")
            connection.execute("UPDATE flow_run SET start_time = ? WHERE name = ?", (time, name))
            connection.execute("UPDATE flow_run SET end_time = ? WHERE name = ? AND end_time NOT NULL", (time, name))
    with prefect_service(tmp_path, environment).shared() as url, SyncPrefectClient(url, auth_string=LOGIN) as client:
        until("the end of the old run", lambda: "old" not in {run.name for run in client.read_flow_runs()})
        assert {run.name for run in client.read_flow_runs()} == {"younger", "stands"}
