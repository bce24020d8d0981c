"""`deploy`, on a real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.stack.pools import deploy
from tests.greeting import write_greeting

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


def test_runs_begin_in_the_folder_of_their_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Wherever the command is called, and whatever the shell that called it left in PWD: `make -C`, an exec."""
    from prefect import get_client

    project, caller = tmp_path / "project", tmp_path / "caller"
    project.mkdir()
    caller.mkdir()
    deployments = write_greeting(project)
    monkeypatch.chdir(caller)
    monkeypatch.setenv("PWD", "/nowhere")
    deploy(Path(os.path.relpath(deployments)), gpu_slots=1)
    with get_client(sync_client=True) as client:
        (pull,) = client.read_deployment_by_name("greet/greeting").pull_steps or ()
    assert pull == {"prefect.deployments.steps.set_working_directory": {"directory": str(project)}}
