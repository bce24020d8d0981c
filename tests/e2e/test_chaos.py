"""Some cells of the chaos table, four to a run; `make chaos` plays all, and writes docs/internals/reliability.md."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

RUN = "sigkill-driver@ingest+postgres-20@rollout+sigkill-stage@train+postgres-0@register"
"""Faults that are soon over and soon noticed."""
_PATIENCE_S = 1500


@pytest.mark.e2e
@pytest.mark.skipif(os.getuid() != 0, reason="disks of the machines are mounted as root")
@pytest.mark.skipif(not Path("/usr/lib/postgresql").is_dir(), reason="not installed: apt-get install postgresql")
def test_a_disturbed_run_ends_like_an_undisturbed_one(tmp_path: Path):
    """The same policy, one version, one promotion, nothing left over; each of the faults has happened."""
    from tests.chaos.table import Played

    outcomes = tmp_path / "outcomes"
    command = [sys.executable, "-W", "ignore", "-m", "tests.chaos", "--cells", RUN, "--json", str(outcomes)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(Played(outcomes).cells()) == set(RUN.split("+"))
