"""`deploy`, on a real server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.stack.pools import deploy

pytestmark = [pytest.mark.usefixtures("server"), pytest.mark.filterwarnings("ignore")]
DEPLOYED = """
name: elsewhere
pull:
  - prefect.deployments.steps.set_working_directory: {directory: "{{ $PWD }}"}
deployments:
  - {name: elsewhere, entrypoint: "flow.py:greet", work_pool: {name: cpu}}
"""
FLOW = "from prefect import flow\n\n@flow\ndef greet() -> str:\n    return 'hello'\n"


def test_runs_begin_in_the_folder_of_their_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Wherever the command is called, and whatever the shell that called it left in PWD: `make -C`, an exec."""
    from prefect import get_client

    project, caller = tmp_path / "project", tmp_path / "caller"
    project.mkdir()
    caller.mkdir()
    (project / "prefect.yaml").write_text(DEPLOYED, encoding="utf-8")
    (project / "flow.py").write_text(FLOW, encoding="utf-8")
    monkeypatch.chdir(caller)
    monkeypatch.setenv("PWD", "/nowhere")
    deploy(Path(os.path.relpath(project / "prefect.yaml")), gpu_slots=1)
    with get_client(sync_client=True) as client:
        (pull,) = client.read_deployment_by_name("greet/elsewhere").pull_steps or ()
    assert pull == {"prefect.deployments.steps.set_working_directory": {"directory": str(project)}}
