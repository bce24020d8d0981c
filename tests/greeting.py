"""The smallest project that can be deployed: one flow, `greet/greeting`, on the pool `cpu`."""

from __future__ import annotations

from pathlib import Path

_DEPLOYED = """
name: greeting
pull:
  - prefect.deployments.steps.set_working_directory: {directory: "{{ $PWD }}"}
deployments:
  - {name: greeting, entrypoint: "flow.py:greet", work_pool: {name: cpu}}
"""
_FLOW = "from prefect import flow\n\n@flow\ndef greet() -> str:\n    return 'hello'\n"


def write_greeting(folder: Path) -> Path:
    """Write it into a folder; returns its prefect.yaml."""
    (folder / "flow.py").write_text(_FLOW, encoding="utf-8")
    path = folder / "prefect.yaml"
    path.write_text(_DEPLOYED, encoding="utf-8")
    return path
