"""`deploy`, on a real server."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from flows.local.deployments import JOB_TEMPLATE, deploy
from tests.greeting import write_greeting

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]


def test_a_pool_of_processes_takes_no_command_also_where_it_was_there_before(tmp_path: Path):
    """A pool that somebody made with Prefect's own template gets ours; a second call changes nothing."""
    from prefect import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    shipped = ProcessWorker.get_default_base_job_template()
    deployments = write_greeting(tmp_path)
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name="cpu", type="process"))
        client.update_work_pool("cpu", WorkPoolUpdate(base_job_template=shipped))
        for _ in range(2):
            deploy(deployments, gpu_slots=1)
            assert client.read_work_pool("cpu").base_job_template == JOB_TEMPLATE
    assert "command" in shipped["variables"]["properties"]
    assert list(JOB_TEMPLATE["variables"]["properties"]) == ["env"]


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
