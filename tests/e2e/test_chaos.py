"""Five cells of the chaos table in one run; `make chaos` plays all, and writes docs/internals/reliability.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

CELLS = (
    *("postgres-20@ingest", "s3-503@rollout", "sigkill-driver@rollout", "sigkill-stage@train"),
    "mlflow-refused@register",
)
"""A fault of each kind of service and of each kind of process, all in one run."""
_LONGEST_S = 10
"""Time after which a fault ends that lasts for a minute in the table."""
_PATIENCE_S = 1500


@pytest.mark.e2e
@pytest.mark.skipif(os.getuid() != 0, reason="disks of the machines are mounted as root")
@pytest.mark.skipif(not Path("/usr/lib/postgresql").is_dir(), reason="not installed: apt-get install postgresql")
@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a clock that jumps: apt-get install gcc")
def test_a_disturbed_run_ends_like_an_undisturbed_one(tmp_path: Path):
    """The same policy, one version, one promotion, nothing left over; each of the faults has happened."""
    from tests.chaos.table import Played

    outcomes = tmp_path / "outcomes"
    command = [sys.executable, "-W", "ignore", "-m", "tests.chaos", "--cells", "+".join(CELLS), "--json", str(outcomes)]
    shortened = [*command, "--longest-s", str(_LONGEST_S)]
    done = subprocess.run(shortened, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = Played(outcomes).cells()
    assert {name: cell.state for name, cell in cells.items()} == dict.fromkeys(CELLS, "COMPLETED")
