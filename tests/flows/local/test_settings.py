"""Environment variables that every command sets, and debug messages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.places import ROOT


def test_telemetry_of_all_packages_is_off():
    """Their variables are set in the environment of the command."""
    code = (
        "from grpo_local import settings; settings.apply(); import os;"
        "print(os.environ['DO_NOT_TRACK'], os.environ['PREFECT_SERVER_ANALYTICS_ENABLED'],"
        "os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['GX_ANALYTICS_ENABLED'], os.environ['HF_HUB_OFFLINE'])"
    )
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == ["1", "false", "true", "false", "1"]


@pytest.mark.parametrize(("value", "enabled"), [("1", True), ("0", False)])
def test_grpo_debug_enables_debug_messages(value: str, enabled: bool):
    """Of this project alone: other loggers keep their level."""
    code = (
        "import logging; from grpo_local import settings; settings.enable_debug_logging();"
        "logging.getLogger('grpo_tasks.execution.executor').debug('ours'); logging.getLogger('urllib3').debug('theirs')"
    )
    environment = {**os.environ, "GRPO_DEBUG": value, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ("DEBUG grpo_tasks.execution.executor: ours" in done.stderr) is enabled
    assert "theirs" not in done.stderr
