"""The same command again: all stages are cache hits, and the packages that only a computation needs stay out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo.evaluation.report import read_report
from tests.e2e.commands import start
from tests.e2e.served import own_environment
from tests.places import ROOT

_RUN = """
import atexit, sys
heavy = ("torch", "great_expectations")
atexit.register(lambda: print("imported:", [name for name in heavy if name in sys.modules]))
from grpo_cli.app import run
run()
"""


@pytest.mark.e2e
def test_a_repeated_run_imports_neither_pytorch_nor_great_expectations(
    desk_config: dict[str, object], tmp_path: Path, server: str
):
    """They take seven seconds of its time, and its report needs only the tokenizer."""
    folder, config = tmp_path / "home", tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(desk_config))
    environment = own_environment(folder, server)
    first = start("train", str(config), environment=environment, output=tmp_path / "first.txt").end()
    assert first[0] in (0, 3), first[1]
    again = subprocess.run(
        [sys.executable, "-c", _RUN, "train", str(config)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert again.returncode == first[0], again.stdout + again.stderr
    assert "imported: []" in again.stdout
    stages = read_report(folder / str(desk_config["name"]) / "report.json").stages
    assert [stage.name for stage in stages if stage.cached < stage.runs] == []
