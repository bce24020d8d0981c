"""The lines of a new project's README.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_cli.app import app
from tests.command_lines import shell_lines
from tests.places import ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as `grpo init` writes it, as the current folder."""
    monkeypatch.setenv("GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["init", "shop"]).exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


def test_the_message_in_the_readme_is_answered_with_a_call(project: Path):
    """The line of `grpo evaluate`, with a script for the model, which looks up the order that the message names."""
    lines = shell_lines((project / "README.md").read_text(encoding="utf-8"))
    (line,) = [line for line in lines if line.startswith("grpo evaluate")]
    arguments = shlex.split(line)[1:]
    order = re.findall(r"\d+", arguments[arguments.index("--message") + 1])[0]
    call = '<tool_call>{"name": "look_up", "arguments": {"order": "' + order + '"}}</tool_call>'
    (project / "replies.yaml").write_text(f"- '{call}'\n- It is on its way.\n")
    arguments[arguments.index("--checkpoint") + 1] = "stub://replies.yaml"
    arguments += ["--set", "rollout.max_new_tokens=200"]  # a script has a token for each byte
    code = "from grpo_cli.app import app; app()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=project, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'flows'}:{ROOT / 'tasks'}"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "It is on its way." in ran.stdout
    assert "does not exist" not in ran.stderr
    assert "malformed" not in ran.stderr
    assert f'"order": "{order}"' in ran.stderr
    assert '"price"' in ran.stderr
