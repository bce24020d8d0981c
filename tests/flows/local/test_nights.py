"""Rows of `grpo runs --nights`, with runs of a real Prefect server."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.states import Completed, Crashed, Failed, Running, Scheduled
from rich.console import Console

from grpo_cli.display import print_nights
from grpo_local.nights import read_nights
from grpo_local.run_checks import open_api

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
TODAY = date(2030, 3, 10)


@flow(name="retrain")
def retrain() -> None:
    """Stand-in with the name of the flow."""


@flow(name="train")
def train() -> None:
    """A flow whose runs are not nights."""


def planned(client: SyncPrefectClient, back: int, name: str, work=retrain, hour: int = 2):
    """A run that was planned for an hour of a day before today."""
    at = datetime(TODAY.year, TODAY.month, TODAY.day, hour, tzinfo=UTC) - timedelta(days=back)
    return client.create_flow_run(work, name=name, state=Scheduled(scheduled_time=at))


@pytest.fixture(scope="module", autouse=True)
def nights(server: str) -> None:
    """A promoted night, one of two runs, an idle one, a crashed one, none, a failed one, and one before the days."""
    with get_client(sync_client=True) as client:
        ends = {
            0: Running(),
            1: Completed(name="Nothing to do", message="no trigger fired"),
            2: Crashed(message="No heartbeat for 120 s: its process is gone."),
            4: Failed(message="ConnectionError: s3://b \x1b[2J does not answer"),
            5: Completed(message="promote: better"),
            40: Completed(message="long ago"),
        }
        for back, state in ends.items():
            client.set_flow_run_state(planned(client, back, f"night-{back}").id, state, force=True)
        planned(client, 5, "second", hour=14)
        planned(client, 1, "other", work=train)


def test_each_run_of_the_days_has_a_row_and_a_day_without_one_as_well(server: str, home: Path):
    """The newest first; runs of other flows and older ones are left out."""
    with open_api(server, home) as client:
        rows = read_nights(client, 7, today=TODAY)
    shown = [(row.day.day, row.run, row.state) for row in rows]
    assert shown == [
        (10, "night-0", "Running"),
        (9, "night-1", "Nothing to do"),
        (8, "night-2", "Crashed"),
        (7, "", "no run"),
        (6, "night-4", "Failed"),
        (5, "second", "Scheduled"),
        (5, "night-5", "Completed"),
    ]
    assert [row.message for row in rows][1:3] == ["no trigger fired", "No heartbeat for 120 s: its process is gone."]


def test_days_before_the_first_run_and_a_server_without_one_have_no_rows(server: str, home: Path):
    """There was no schedule yet."""
    with open_api(server, home) as client:
        assert len(read_nights(client, 40, today=TODAY)) == 7
        assert read_nights(client, 5, today=date(2031, 1, 1)) == []


def test_the_table_escapes_what_a_run_said(server: str, home: Path):
    """A message comes from user code: it moves no cursor."""
    console = Console(width=200, force_terminal=False)
    with open_api(server, home) as client, console.capture() as printed:
        print_nights(console, read_nights(client, 7, today=TODAY))
    assert "\x1b[2J" not in printed.get()
    assert "\\x1b[2J does not answer" in printed.get()
    assert "no run" in printed.get()
